# OATO for a host with an Ascend NPU; untested, as we have none. Driver and CANN are the host's, mounted when it
# runs: see docs/npu.md. Build in the folder of the sources: docker build -t oato -f docs/npu.Dockerfile .
FROM debian:12
COPY . /src
RUN cd /src && scripts/setup --user && cmake --preset release && cmake --build --preset release && \
    cmake --install build/release --prefix /usr/local && rm -rf /src /var/lib/apt/lists/*
# CANN's own script sets where its operators are.
ENV LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64/common:/usr/local/Ascend/driver/lib64/driver
ENTRYPOINT ["/bin/bash", "-c", ". /usr/local/Ascend/ascend-toolkit/set_env.sh; exec oato \"$@\"", "oato"]
