"""The places, other than this machine, that `stoker check` can check."""

import importlib
from typing import Protocol, cast

from stoker.backends.backend import CheckResult
from stoker.spec.errors import UserError

CHECKS = {"kube": "stoker.backends.kubernetes.check"}
"""Imported on first use: an HTTP client takes a while to import."""


class CheckModule(Protocol):
    def check(self, context: str | None, namespace: str | None) -> list[CheckResult]: ...


def check_place(place: str, context: str | None, namespace: str | None) -> list[CheckResult]:
    if place not in CHECKS:
        known = ", or ".join(["stoker check", *(f"stoker check {name}" for name in CHECKS)])
        raise UserError(f"stoker cannot check '{place}'", remedy=f"Run: {known}")
    return cast(CheckModule, importlib.import_module(CHECKS[place])).check(context, namespace)
