# syntax=docker/dockerfile:1
#
# The build stage and the image are both Debian 12, so that the binary meets the C
# library it was linked with.

FROM rust:1-slim-bookworm AS build
WORKDIR /build
COPY . .
# The caches stay on the build machine: a change in src compiles this crate only.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --release --locked --bin milepost \
    && install -D -m 0755 target/release/milepost /out/usr/local/bin/milepost \
    && install -d /out/var/lib/milepost

# Distroless instead of debian-slim: glibc and libgcc are all that the binary needs; no
# shell and no package manager means that nothing else is there to be attacked or
# patched. Health checks and preStop hooks call the binary itself.
FROM gcr.io/distroless/cc-debian12:nonroot

COPY --from=build /out/usr/local/bin/milepost /usr/local/bin/milepost
COPY --from=build --chown=65532:65532 /out/var/lib/milepost /var/lib/milepost

# Loopback would be unreachable from outside the container. The admin port stays on it:
# the health check runs inside.
ENV MILEPOST_SERVER__LISTEN=0.0.0.0:8080 \
    MILEPOST_ROOM_LOG__PATH=/var/lib/milepost/milepost.db

WORKDIR /var/lib/milepost
VOLUME /var/lib/milepost
USER 65532:65532
EXPOSE 8080

# The binary is PID 1 and gets the signal itself: exec form, no shell in between. The
# shutdown takes at most 5 s by default; `docker stop` waits 10 s.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 \
    CMD ["/usr/local/bin/milepost", "healthcheck"]

ENTRYPOINT ["/usr/local/bin/milepost"]
CMD ["serve"]
