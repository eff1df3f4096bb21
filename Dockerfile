# syntax=docker/dockerfile:1
# One file, two images:
#
#   docker build --target cpu -t pivotopd:cpu .
#   docker build --target gpu -t pivotopd:gpu .
#
# Versions are those of requirements.lock. The packages for a GPU bring CUDA's libraries, so both stand on one
# base; the driver comes from the node.

ARG PYTHON=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1

# What both need to run: a compiler for the operators that DeepSpeed and Triton compile at their first start.
FROM ${PYTHON} AS base
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 pivotopd \
    && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin pivotopd
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    GIT_PYTHON_REFRESH=quiet \
    DO_NOT_TRACK=1 \
    MLFLOW_DISABLE_TELEMETRY=true
RUN python -m venv /opt/venv
WORKDIR /opt/pivotopd

# What both hold of this repository.
FROM scratch AS source
COPY LICENSE README.md pyproject.toml requirements.lock /
COPY configs /configs
COPY pivotopd /pivotopd
COPY stages /stages
COPY flows /flows

# Dependencies are layers of their own: a change of code does not install them again.
FROM base AS dependencies
COPY pyproject.toml requirements.lock ./
COPY infra/dependencies.py infra/dependencies.py
COPY infra/requirements/services.txt infra/requirements/services.txt

FROM dependencies AS dependencies-cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    version="$(sed -n 's/^torch==//p' requirements.lock)" \
    && python -m pip install --index-url "$TORCH_INDEX" --extra-index-url https://pypi.org/simple \
        -c requirements.lock "torch==${version}+cpu"
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    python infra/dependencies.py kubernetes > /tmp/requirements.txt \
    && python -m pip install -c requirements.lock -c infra/requirements/services.txt -r /tmp/requirements.txt

FROM dependencies AS dependencies-gpu
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    python infra/dependencies.py kubernetes vllm > /tmp/requirements.txt \
    && python -m pip install -c requirements.lock -c infra/requirements/services.txt -r /tmp/requirements.txt

FROM dependencies-cpu AS cpu
ARG COMMIT=unknown
LABEL org.opencontainers.image.title=pivotopd \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.revision=$COMMIT
COPY --from=source / ./
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --no-deps -e . \
    && python -m compileall -q pivotopd stages flows \
    && pivotopd --version
ENV DS_ACCELERATOR=cpu
USER 10001:10001
CMD ["pivotopd", "--help"]

FROM dependencies-gpu AS gpu
ARG COMMIT=unknown
LABEL org.opencontainers.image.title=pivotopd \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.revision=$COMMIT
COPY --from=source / ./
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --no-deps -e . \
    && python -m compileall -q pivotopd stages flows \
    && pivotopd --version
ENV DS_ACCELERATOR=cuda
USER 10001:10001
CMD ["pivotopd", "--help"]
