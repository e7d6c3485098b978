# suffice serve in a container: docs/deploy.md.
#
#   docker build -t suffice .
#   docker run --rm -p 127.0.0.1:8000:8000 -v suffice:/var/cache/suffice suffice

ARG PYTHON=3.12-slim-bookworm

# The environment, with what only building needs.
FROM python:${PYTHON} AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends cmake g++ ninja-build \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY csrc csrc
COPY src src
# Kernels for all processors, since the image may run on another machine: a list (base,v3,v4) takes less time.
ARG SETS=all
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels -C cmake.define.SUFFICE_SETS=${SETS} .
RUN python -m venv --without-pip /opt/suffice \
    && pip --python /opt/suffice/bin/python install --no-cache-dir "$(echo /wheels/suffice-*.whl)[serve]"

# What runs: no compiler, no sources.
FROM python:${PYTHON}
# The id is fixed, so that the volume's files keep their owner from image to image.
RUN groupadd --gid 10001 suffice \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin suffice \
    && install --directory --owner=suffice --group=suffice --mode=0700 /var/cache/suffice
COPY --from=build /opt/suffice /opt/suffice
# SUFFICE_HOST: `docker run suffice serve -m MODEL`, which replaces CMD, listens outside of the container, too.
ENV PATH=/opt/suffice/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SUFFICE_CACHE=/var/cache/suffice \
    HF_HOME=/var/cache/suffice/hub \
    SUFFICE_HOST=0.0.0.0
VOLUME /var/cache/suffice
WORKDIR /var/cache/suffice
EXPOSE 8000
USER 10001:10001
# The first start downloads the model and packs its weights.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('SUFFICE_PORT', 8000)), timeout=4); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["suffice"]
CMD ["serve", "--host", "0.0.0.0"]
