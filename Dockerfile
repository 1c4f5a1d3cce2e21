# syntax=docker/dockerfile:1
#
# Sluice on OpenResty. Each stage runs what `make` runs outside of it:
#
#     docker build --target test .       builds, installs what is missing, runs the tests
#     docker build -t sluice .           OpenResty with Sluice installed
#     docker run -p 80:80 -v ./nginx.conf:/usr/local/openresty/nginx/conf/nginx.conf:ro \
#         -v ./sluice.toml:/etc/sluice/sluice.toml:ro --shm-size 256m sluice
#
# The region (`shm.path`) lives in the container's /dev/shm: a new container starts with
# empty buckets unless /dev/shm is shared (--ipc=host, or a tmpfs mounted at the path).
ARG OPENRESTY=openresty/openresty:1.25.3.2-0-bookworm-fat
ARG RUST=rust:1.95-bookworm

FROM ${RUST} AS rust

# --- build: make build, make install ---------------------------------------------------
FROM ${OPENRESTY} AS build
ENV CARGO_HOME=/usr/local/cargo RUSTUP_HOME=/usr/local/rustup \
    PATH=/usr/local/cargo/bin:/usr/local/openresty/nginx/sbin:/usr/local/openresty/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY --from=rust /usr/local/rustup /usr/local/rustup
WORKDIR /src
# What is needed to build, by itself, so that a change of the source does not repeat it.
COPY Cargo.toml ./
COPY .ci/deps .ci/packages ./.ci/
COPY openresty-conf/dev/common.sh ./openresty-conf/dev/
RUN .ci/deps build
COPY . .
RUN make build
RUN make install DESTDIR=/out

# --- test: make test -------------------------------------------------------------------
# As `docker build` runs it: as root, without the right to mount (two harnesses say that they
# leave a case out), with a /dev/shm of 64 MB, perhaps without IPv6.
FROM build AS test
RUN .ci/deps build nginx redis test
RUN make test

# --- runtime ---------------------------------------------------------------------------
FROM ${OPENRESTY} AS runtime
COPY --from=build /out/ /
COPY --from=build /out/usr/local/share/sluice/conf/sluice.toml /etc/sluice/sluice.toml
# Where the example nginx.conf logs to; Debian's nginx package makes it, OpenResty's does not.
RUN mkdir -p /var/log/nginx \
    && ln -sf /dev/stdout /var/log/nginx/access.log \
    && ln -sf /dev/stderr /var/log/nginx/error.log
STOPSIGNAL SIGQUIT
# nginx does not see what is wrong in sluice.toml before it runs; the tool does.
CMD ["sh", "-c", "sluice check /etc/sluice/sluice.toml && exec openresty -g 'daemon off;'"]
