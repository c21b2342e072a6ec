"""Objects in an S3 bucket, by boto3. Credentials, region and endpoint are configured as for boto3."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)

from stoker.storage.store import Listing, Object, StoreError, StoreUnreachable, changed, deleted, part_size

CONCURRENT_PARTS = 4  # of one file
CHUNK_BYTES = 1 << 18
MAX_DELETED_KEYS = 1000  # in one request
SETTINGS = Config(
    connect_timeout=5,
    read_timeout=60,
    retries={"mode": "standard", "total_max_attempts": 4},
    max_pool_connections=32,
)


def open_bucket(bucket: str, prefix: str, *, anonymous: bool = False, region: str | None = None) -> "S3":
    return S3(bucket, prefix, anonymous=anonymous, region=region)


class S3:
    def __init__(self, bucket: str, prefix: str, *, anonymous: bool = False, region: str | None = None) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        with self._store_errors():
            settings = SETTINGS.merge(Config(signature_version=UNSIGNED)) if anonymous else SETTINGS
            self._client: Any = boto3.session.Session().client("s3", config=settings, region_name=region)

    def list(self, prefix: str = "") -> Listing:
        objects: dict[str, Object] = {}
        now = None
        for page in self._pages("list_objects_v2", Prefix=self._prefix + prefix):
            now = now or parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
            for item in page.get("Contents", []):
                tag = item["ETag"].strip('"')
                objects[item["Key"].removeprefix(self._prefix)] = Object(
                    size=item["Size"], tag=tag, modified=item["LastModified"], version=tag
                )
        assert now is not None
        return Listing(objects=objects, now=now)

    def look(self, key: str) -> Object | None:
        with self._store_errors():
            try:
                head = self._client.head_object(**self._at(key))
            except ClientError as e:
                if _status(e) != 404:
                    raise
                return None
        tag, secret = head["ETag"].strip('"'), head.get("ServerSideEncryption", "AES256") != "AES256"
        md5 = None if "-" in tag or secret or "SSECustomerAlgorithm" in head else tag
        return Object(size=head["ContentLength"], tag=tag, modified=head["LastModified"], version=tag, md5=md5)

    def folders(self) -> Sequence[str]:
        pages = self._pages("list_objects_v2", Prefix=self._prefix, Delimiter="/")
        prefixes = [folder["Prefix"] for page in pages for folder in page.get("CommonPrefixes", [])]
        return [name.removeprefix(self._prefix).rstrip("/") for name in prefixes]

    def get(self, key: str) -> bytes | None:
        with self._store_errors():
            try:
                data: bytes = self._client.get_object(**self._at(key))["Body"].read()
            except self._client.exceptions.NoSuchKey:
                return None
        return data

    def download(self, key: str, path: Path) -> None:
        with self._store_errors():
            try:
                self._client.download_file(self._bucket, self._prefix + key, str(path))
            except ClientError as e:
                if _status(e) != 404:
                    raise
                raise deleted(f"{self.url}/{key}") from e

    def read(self, key: str, start: int, version: str) -> Iterator[bytes]:
        with self._store_errors():
            try:
                answer = self._client.get_object(**self._at(key), Range=f"bytes={start}-", IfMatch=f'"{version}"')
            except ClientError as e:
                if _status(e) not in (404, 412):
                    raise
                raise changed(f"{self.url}/{key}") from e
            yield from answer["Body"].iter_chunks(CHUNK_BYTES)

    def put(self, key: str, data: bytes) -> None:
        with self._store_errors():
            self._client.put_object(**self._at(key), Body=data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._store_errors():
            try:
                self._client.put_object(**self._at(key), Body=data, IfNoneMatch="*")
            except ClientError as e:
                if _status(e) not in (409, 412):
                    raise
                return False
        return True

    def upload(self, key: str, path: Path) -> None:
        size = path.stat().st_size
        if size <= part_size(size):
            self.put(key, path.read_bytes())
            return
        with self._store_errors(), open(path, "rb") as file:
            upload, known = self._resumable_upload(key)
            pool = ThreadPoolExecutor(CONCURRENT_PARTS)
            try:
                tags = list(pool.map(lambda part: self._send(key, upload, file.fileno(), part, known), _parts(size)))
            finally:
                pool.shutdown(cancel_futures=True)
            parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, start=1)]
            self._client.complete_multipart_upload(**self._at(key), UploadId=upload, MultipartUpload={"Parts": parts})

    def unfinished(self, prefix: str) -> Iterable[str]:
        pages = self._pages("list_multipart_uploads", Prefix=self._prefix + prefix)
        return [upload["Key"].removeprefix(self._prefix) for page in pages for upload in page.get("Uploads", [])]

    def abandon(self, key: str) -> None:
        for upload in self._uploads(key):
            self._abort(key, upload["UploadId"])

    def delete(self, keys: Iterable[str]) -> None:
        all_keys = list(keys)
        for start in range(0, len(all_keys), MAX_DELETED_KEYS):
            batch = all_keys[start : start + MAX_DELETED_KEYS]
            with self._store_errors():
                answer = self._client.delete_objects(
                    Bucket=self._bucket,
                    Delete={"Objects": [{"Key": self._prefix + key} for key in batch], "Quiet": True},
                )
            for error in answer.get("Errors", []):
                raise self._refused(error.get("Code", "AccessDenied"))

    def tag(self, path: Path) -> str:
        """The MD5 of the content, or of the parts' MD5s; in a bucket with its own encryption keys it never matches."""
        size = path.stat().st_size
        with open(path, "rb") as file:
            if size <= part_size(size):
                return hashlib.file_digest(file, _md5).hexdigest()
            digests = [_md5(os.pread(file.fileno(), end - start, start)).digest() for _, start, end in _parts(size)]
        return f"{_md5(b''.join(digests)).hexdigest()}-{len(digests)}"

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _pages(self, call: str, **parameters: str) -> Iterator[Any]:
        with self._store_errors():
            yield from self._client.get_paginator(call).paginate(Bucket=self._bucket, **parameters)

    def _uploads(self, key: str) -> Sequence[Any]:
        """The unfinished uploads of exactly this key, oldest first."""
        pages = self._pages("list_multipart_uploads", Prefix=self._prefix + key)
        uploads = [
            upload for page in pages for upload in page.get("Uploads", []) if upload["Key"] == self._prefix + key
        ]
        return sorted(uploads, key=lambda upload: upload["Initiated"])

    def _resumable_upload(self, key: str) -> tuple[str, dict[int, str]]:
        """An upload to resume, or a new upload; and the tags of its parts."""
        with suppress(StoreError):  # listing uploads needs a permission of its own
            if upload := self._unfinished_of(key):
                return upload, {part["PartNumber"]: part["ETag"].strip('"') for part in self._parts(key, upload)}
        return self._client.create_multipart_upload(**self._at(key))["UploadId"], {}

    def _unfinished_of(self, key: str) -> str | None:
        """The newest upload; older ones are aborted."""
        ids: list[str] = [unfinished["UploadId"] for unfinished in self._uploads(key)]
        for upload in ids[:-1]:
            self._abort(key, upload)
        return ids[-1] if ids else None

    def _abort(self, key: str, upload: str) -> None:
        with self._store_errors(), suppress(self._client.exceptions.NoSuchUpload):
            self._client.abort_multipart_upload(**self._at(key), UploadId=upload)

    def _parts(self, key: str, upload: str) -> Iterator[Any]:
        pages = self._pages("list_parts", Key=self._prefix + key, UploadId=upload)
        return (part for page in pages for part in page.get("Parts", []))

    def _send(self, key: str, upload: str, file: int, part: tuple[int, int, int], known: dict[int, str]) -> str:
        """Returns the part's tag, the MD5 of its bytes; a part with that tag is not sent again."""
        number, start, end = part
        data = os.pread(file, end - start, start)
        tag = _md5(data).hexdigest()
        if known.get(number) == tag:
            return tag
        answer = self._client.upload_part(**self._at(key), UploadId=upload, PartNumber=number, Body=data)
        sent: str = answer["ETag"].strip('"')
        return sent

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Converts the client's exceptions to StoreErrors."""
        try:
            yield
        except ClientError as e:
            if _status(e) in (401, 403):
                raise self._refused(e.response["Error"]["Code"]) from e
            if e.response["Error"]["Code"] in ("NoSuchBucket", "404"):
                raise StoreError(
                    f"there is no bucket '{self._bucket}' ({self.url})",
                    remedy=f"Check its name, or make it with: aws s3 mb s3://{self._bucket}",
                ) from e
            raise self._unreachable(e.response["Error"].get("Message") or e.response["Error"]["Code"]) from e
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, ProfileNotFound) as e:
            raise StoreError(
                f"{self.url}: there are no AWS credentials here ({e})",
                remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run: aws configure",
            ) from e
        except (BotoCoreError, Boto3Error, ValueError) as e:
            raise self._unreachable(e) from e

    def _refused(self, reason: str) -> StoreError:
        return StoreError(
            f"no permission for {self.url} ({reason})",
            remedy="Allow s3:ListBucket, GetObject, PutObject and DeleteObject there, or use other credentials",
        )

    def _unreachable(self, reason: object) -> StoreUnreachable:
        return StoreUnreachable(
            f"{self.url} cannot be reached ({reason})", remedy="Check the network and AWS_ENDPOINT_URL, then try again"
        )


def _parts(size: int) -> list[tuple[int, int, int]]:
    """(number, start, end) of each."""
    bounds = [*range(0, size, part_size(size)), size]
    return [(number, start, end) for number, (start, end) in enumerate(pairwise(bounds), start=1)]


def _md5(data: bytes = b"") -> "hashlib._Hash":
    return hashlib.md5(data, usedforsecurity=False)


def _status(error: ClientError) -> int:
    code: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return code
