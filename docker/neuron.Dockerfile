# Base image for AWS Trainium (trn1, trn1n), with EFA: Neuron 2.31, the last release whose PyTorch trains through XLA
# (torch 2.9). `stoker image` adds Stoker and your code.
#
#   docker build --platform linux/amd64 -f docker/neuron.Dockerfile -t REGISTRY/stoker-base:neuron docker
ARG BASE=ubuntu:24.04
FROM ${BASE}

ARG RUNTIME=2.33.10.0
ARG COLLECTIVES=2.33.10.0
ARG TOOLS=2.31.13.0
ARG COMPILER=2.26.6360.0
ARG EFA=1.48.0
ENV DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

RUN apt-get update && \
    apt-get install -y --no-install-recommends ca-certificates curl g++ gnupg python3 python3-dev python3-venv && \
    rm -rf /var/lib/apt/lists/*
RUN install -d /etc/apt/keyrings && \
    curl -fsSL https://apt.repos.neuron.amazonaws.com/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB | \
      gpg --dearmor -o /etc/apt/keyrings/neuron.gpg && \
    echo "deb [signed-by=/etc/apt/keyrings/neuron.gpg] https://apt.repos.neuron.amazonaws.com noble main" \
      > /etc/apt/sources.list.d/neuron.list && \
    apt-get update && apt-get install -y --no-install-recommends "aws-neuronx-runtime-lib=${RUNTIME}*" \
      "aws-neuronx-collectives=${COLLECTIVES}*" "aws-neuronx-tools=${TOOLS}*" && \
    rm -rf /var/lib/apt/lists/*
RUN test -z "${EFA}" || { apt-get update && cd /tmp && \
      curl -fsSL "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA}.tar.gz" | tar xz && \
      cd aws-efa-installer && ./efa_installer.sh -y -g --skip-kmod --skip-limit-conf --no-verify && \
      rm -rf /tmp/aws-efa-installer /var/lib/apt/lists/*; }

RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:/opt/aws/neuron/bin:/opt/amazon/efa/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LD_LIBRARY_PATH=/opt/aws/neuron/lib:/opt/amazon/efa/lib
RUN python3 -m pip install --extra-index-url https://pip.repos.neuron.amazonaws.com \
      "neuronx-cc==${COMPILER}" "torch-neuronx==2.9.*"
# keep the versions that the compiler pins (numpy), and choose the others to match
COPY requirements.txt /opt/stoker/
RUN python3 -m pip freeze > /tmp/installed && sed 's/==/>=0,<=/' /opt/stoker/requirements.txt > /tmp/required && \
    python3 -m pip install -c /tmp/installed -r /tmp/required && rm /tmp/installed /tmp/required
COPY describe.py /opt/stoker/
RUN python3 /opt/stoker/describe.py > /opt/stoker/base.json

ENV PYTHONUNBUFFERED=1
WORKDIR /app
