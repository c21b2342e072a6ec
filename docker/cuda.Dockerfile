# Base image for NVIDIA GPUs, with EFA for fast networks between nodes on AWS. The CUDA libraries and NCCL come with torch's
# wheels; the driver comes from the node. `stoker image` adds Stoker and your code.
#
#   docker build --platform linux/amd64 -f docker/cuda.Dockerfile -t REGISTRY/stoker-base:cuda docker
#
# Arguments: TORCH, the version of torch; INDEX, its pip index (.../whl/cu128 for an older driver); EFA, the version of
# the installer, or empty to omit EFA.
ARG BASE=ubuntu:24.04
FROM ${BASE}

ARG TORCH=2.15.0
ARG INDEX=https://pypi.org/simple
ARG EFA=1.48.0
ENV DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

# g++ and Python's headers: torch.compile builds kernels at run time
RUN apt-get update && \
    apt-get install -y --no-install-recommends ca-certificates curl g++ python3 python3-dev python3-venv && \
    rm -rf /var/lib/apt/lists/*
# libfabric and NCCL's plugin for it; no kernel module (the node has it) and no MPI benchmarks
RUN test -z "${EFA}" || { apt-get update && cd /tmp && \
      curl -fsSL "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA}.tar.gz" | tar xz && \
      cd aws-efa-installer && ./efa_installer.sh -y -g --skip-kmod --skip-limit-conf --no-verify && \
      rm -rf /tmp/aws-efa-installer /var/lib/apt/lists/*; }

RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:/opt/amazon/efa/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu:/opt/amazon/efa/lib \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN python3 -m pip install --index-url "${INDEX}" "torch==${TORCH}"
COPY requirements.txt /opt/stoker/
RUN python3 -m pip install -r /opt/stoker/requirements.txt
COPY describe.py /opt/stoker/
RUN python3 /opt/stoker/describe.py > /opt/stoker/base.json

ENV PYTHONUNBUFFERED=1
WORKDIR /app
