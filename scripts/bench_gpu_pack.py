"""The archive that scripts/bench-gpu carries to a machine with a GPU: our programs with the libraries
that they load beside the C library, and the sources of llama.cpp that a build for one GPU reads.
Unpacked it is a folder bench-gpu with bin, lib, scripts, tests, peer, LICENSE and pack.json.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

MB = 10**6
PACK_MOST = 60 * MB
PROGRAMS = ("oato-run", "oato-plan", "oato-profile", "oato-make-model", "oato-bench-cuda")
TESTS = ("test_cuda_ops", "test_cuda_numbers", "test_cuda_attention", "test_cuda_mla", "test_cuda_experts",
         "test_cuda_sample", "test_cuda_sparse", "test_cuda_state", "test_cuda_device", "test_cuda_spans", "test_cuda_join",
         "test_cuda_streams", "test_cuda_blas", "test_cuda_engine", "test_cuda_pages", "test_stored", "test_order",
         "test_batch", "test_prefix")
OF_EXECUTOR = ("test_cuda_engine", "test_cuda_pages", "test_stored", "test_order", "test_batch", "test_prefix")
SCRIPTS = ("bench-gpu", "bench_gpu_models.py", "bench_gpu_pack.py", "bench_gpu_report.py",
           "bench_report.py", "bench_roofline.py")
TEXT_IDS = "tests/data/gpl3_ids.txt"  # tokens of a text, for the trained model
# Of the C library and the loader, which are the machine's own.
SYSTEM_LIBRARIES = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util))\.so")
PEER_PARTS = ("CMakeLists.txt", "LICENSE", "cmake", "common", "ggml", "include", "src", "tools", "vendor")
PEER_LEFT_OUT = re.compile(r"^(tools/(ui|server)|ggml/src/ggml-(webgpu|openvino|et|metal|hexagon|sycl|"
                           r"vulkan|opencl|cann|zdnn|virtgpu|rpc))(/|$)")


def call(*command):
    r = subprocess.run(command, capture_output=True, text=True, check=False)
    if r.returncode:
        sys.exit(f"bench-gpu: {' '.join(command)}: {r.stderr.strip() or r.returncode}")
    return r.stdout


def revision(root):
    r = subprocess.run(("git", "-C", root, "describe", "--always", "--dirty"), capture_output=True,
                       text=True, check=False)
    return r.stdout.strip() or "unknown"


def program_in(build, name):
    folder = "tests/executor" if name in OF_EXECUTOR else "tests/kernels" if name in TESTS else "bin"
    return os.path.join(build, folder, name)


def libraries_of(programs):
    """What the programs load beside the C library: {name: path}."""
    out = {}
    for program in programs:
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", call("ldd", program), re.M):
            if not SYSTEM_LIBRARIES.match(name):
                out[name] = path
    return out


def copy_peer(peer, to):
    def left_out(folder, names):
        inside = os.path.relpath(folder, peer)
        return [n for n in names if PEER_LEFT_OUT.match(f"{inside}/{n}")]
    os.makedirs(to)
    for part in PEER_PARTS:
        source = os.path.join(peer, part)
        if os.path.isdir(source):
            shutil.copytree(source, os.path.join(to, part), ignore=left_out, symlinks=True)
        else:
            shutil.copy(source, to)


def bytes_below(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def gather(root, build, peer, top):
    """Fills the folder that becomes the archive."""
    programs = [program_in(build, name) for name in PROGRAMS + TESTS]
    for folder in ("bin", "lib", "scripts"):
        os.makedirs(os.path.join(top, folder))
    for program in programs:
        call("strip", "-o", os.path.join(top, "bin", os.path.basename(program)), program)
    for name, path in libraries_of(programs).items():
        shutil.copyfile(path, os.path.join(top, "lib", name))
    for name in SCRIPTS:
        shutil.copy(os.path.join(root, "scripts", name), os.path.join(top, "scripts"))
    if peer:
        copy_peer(call(os.path.join(root, "scripts/fetch-peer"), "--sources").strip(), os.path.join(top, "peer"))
    shutil.copy(os.path.join(root, "LICENSE"), top)
    os.makedirs(os.path.join(top, os.path.dirname(TEXT_IDS)))
    shutil.copy(os.path.join(root, TEXT_IDS), os.path.join(top, TEXT_IDS))
    with open(os.path.join(top, "pack.json"), "w", encoding="utf-8") as f:
        json.dump({"revision": revision(root)}, f)


def make_pack(root, build, archive, peer=True):
    for name in PROGRAMS + TESTS:
        if not os.path.exists(program_in(build, name)):
            sys.exit(f"bench-gpu: {program_in(build, name)} is missing: build it, or name another --build")
    partial = archive + ".partial"
    with tempfile.TemporaryDirectory() as work:
        top = os.path.join(work, "bench-gpu")
        gather(root, build, peer, top)
        for part in sorted(os.listdir(top)):
            print(f"{bytes_below(os.path.join(top, part)) / MB:7.1f} MB  {part}")
        # Every program has the same kernels for GPUs in it: 7 MB that xz sees again at this distance.
        with tarfile.open(partial, "w:xz", preset=9) as out:
            out.add(top, "bench-gpu")
    total = os.path.getsize(partial)
    print(f"{total / MB:7.1f} MB  {os.path.basename(archive)}, compressed")
    if total > PACK_MOST:
        os.remove(partial)
        sys.exit(f"bench-gpu: {total / MB:.1f} MB are more than the {PACK_MOST / MB:.0f} MB that can be carried")
    os.replace(partial, archive)
