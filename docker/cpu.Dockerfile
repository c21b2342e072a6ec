# Base image for CPUs: Python, torch and the packages that Stoker needs. `stoker image` adds Stoker and your code.
#
#   docker build --platform linux/amd64 -f docker/cpu.Dockerfile -t REGISTRY/stoker-base:cpu docker
#   buildah bud --platform linux/amd64 -f docker/cpu.Dockerfile -t REGISTRY/stoker-base:cpu docker
#
# Arguments: BASE, any Debian or Ubuntu with Python 3.11 or newer; TORCH, the version of torch; INDEX, its pip index.
ARG BASE=python:3.12.12-slim-bookworm
FROM ${BASE}

ARG TORCH=2.15.0
ARG INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

RUN python3 -m pip --version || { \
      apt-get update && apt-get install -y --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*; }
RUN python3 -m pip install --extra-index-url "${INDEX}" "torch==${TORCH}"
COPY requirements.txt /opt/stoker/
RUN python3 -m pip install -r /opt/stoker/requirements.txt
COPY describe.py /opt/stoker/
RUN python3 /opt/stoker/describe.py > /opt/stoker/base.json

ENV PYTHONUNBUFFERED=1
WORKDIR /app
