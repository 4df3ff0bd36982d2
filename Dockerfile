# The commands of this project on CPUs, by default a server of the model of the package on port 8501
# (docs/serving.md, "In a container").
#
#   docker build --build-arg VERSION=0.1.0 --tag vit-tf:0.1.0 .
#
# The packages are a layer of their own, which changes only with requirements.lock and
# pyproject.toml; this project is the last, small one. The compiler stays in the stage `wheel`.

FROM python:3.11-slim-bookworm AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/vit-tf/bin:$PATH
RUN python -m venv /opt/vit-tf
WORKDIR /source
COPY requirements.lock pyproject.toml ./
# Without the source, pip cannot read what the project requires.
RUN python -c "import tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = project['optional-dependencies']; \
print(*project['dependencies'], *extras['train'], *extras['serve'], sep='\n')" > required.txt \
    && pip install --constraint requirements.lock --requirement required.txt

FROM packages AS wheel
# The base image decides the version of the compiler.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
# The ops are compiled for the TensorFlow of the stage above: no isolation.
RUN pip install --constraint requirements.lock setuptools wheel pybind11
COPY README.md LICENSE setup.py ./
COPY custom_ops custom_ops
COPY vit_tf vit_tf
COPY pipelines pipelines
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim-bookworm
COPY --from=packages /opt/vit-tf /opt/vit-tf
# Matplotlib's cache: the home may be read-only.
ENV PATH=/opt/vit-tf/bin:$PATH PYTHONUNBUFFERED=1 MPLCONFIGDIR=/tmp/matplotlib
# It must be that of the source, which is in the name of the wheel.
ARG VERSION
# Without its ops the project works, but slower: here it is an error. What the check caches in its
# home is not kept.
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=tmpfs,target=/tmp \
    pip install --no-cache-dir --no-index --no-deps "/wheels/vit_tf-${VERSION}-"*.whl \
    && HOME=/tmp python -c "import custom_ops, sys; sys.exit(not custom_ops.is_compiled())" \
    && useradd --create-home --uid 10001 vit
LABEL org.opencontainers.image.title="vit-tf" \
      org.opencontainers.image.description="Vision Transformers for TensorFlow and Keras 3, on CPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# A number: Kubernetes cannot tell from a name that it is not root.
USER 10001
WORKDIR /home/vit
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
    CMD ["python", "-c", "from urllib import request; request.urlopen('http://127.0.0.1:8501/healthz', timeout=5)"]
ENTRYPOINT ["vit-tf"]
CMD ["serve", "--host=0.0.0.0", "--port=8501"]
