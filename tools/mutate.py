#!/usr/bin/env python3
"""Puts small faults into the sources, one at a time, and checks that a test notices each of them.

    tools/mutate.py --run [PLACE ...] [--again]   # sync, comm, device, checkpoint, optim, or a file below src/; all without a PLACE
    tools/mutate.py --list [PLACE ...]            # the faults
    tools/mutate.py --self-test                   # every text that a fault replaces occurs once in its file

The faults go into a copy of the tracked and new files, build-mutate/, with a build of its own; the sources themselves stay as
they are. For each fault: replace the text, build the folder's test program (one file compiles), run it, restore the file.
The test program must fail, crash, or exceed its time. A test program that fails without a fault is an error.

build-mutate/results.json has the result of each fault. A second run skips a fault if its file, its text and its tests (with
tests/support/) have not changed; --again runs all. LIBTORCH names LibTorch's folder, as for CMake.
"""
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build-mutate"
RESULTS = COPY / "results.json"
MOST_IN_A_FOLDER = 12
TEST_SECONDS = 900


class Fault(NamedTuple):
    file: str  # below src/
    what: str  # what is wrong with it
    old: str
    new: str
    tests: str = "*"  # a filter of GoogleTest for the folder's test program
    test_folder: str = ""  # whose test program must notice it, if it is not that of the file's folder
    # Why no test can notice it. Such a fault is listed in docs/tested.md and counts as explained.
    explained: str = ""

    @property
    def folder(self):
        return self.test_folder or self.file.split("/")[0]

    @property
    def program(self):
        return f"test_{self.folder}"

    def identity(self):
        return hashlib.sha256("\0".join((self.file, self.old, self.new, self.tests)).encode()).hexdigest()[:16]


# The tests of collectives of ranks on threads.
ON_THREADS = ("Collectives*:Shared*:SequenceCounter*:Hierarchical*:EncodedSum*:RecursiveHalving*:ReduceTree*:Partition*:"
              "ThreadFailures*:Int8Blocks*:CallSignature*:Work*:WireCodec*:ManyRanks*:NodeBroadcast*-*Process*")

FAULTS = [
    Fault("sync/sync_header.cpp", "a mean over one rank too many",
          "plan.total_weight = static_cast<double>(headers.size());", "plan.total_weight = static_cast<double>(headers.size() + 1);"),
    Fault("sync/sync_header.cpp", "ranks' weights are not added",
          "for (const SyncHeader& header : headers) plan.total_weight += header.weight;",
          "for (const SyncHeader& header : headers) plan.total_weight = header.weight;"),
    Fault("sync/gradient_store.cpp", "the slot of an unused parameter keeps its last gradient",
          "buffer_.slot(parameter).zero_();", ""),
    Fault("sync/gradient_store.cpp", "a parameter that only other ranks used gets no gradient",
          "if (used[i] && !grad(i).defined()) buffer_.alias(i);", "(void)used;"),
    Fault("sync/gradient_store.cpp", "a rescaled loss does not rescale pending gradients",
          "buffer_.bucket(static_cast<int>(i)).mul_(scale / loss_scale_);", "{}"),
    Fault("sync/pairwise_accumulator.cpp", "micro-batches are added in another order",
          "sums_ | std::views::reverse", "sums_"),
    Fault("sync/batch_statistics.cpp", "the variance between ranks is left out",
          "(squares + counts * (means - mean).square())", "(squares)"),
    Fault("sync/sparse_rows.cpp", "sparse gradients are sums, not means",
          "mean.values().mul_(scale);", "(void)scale;"),
    Fault("sync/window.cpp", "a step does not end the pending passes",
          "passes_ = joined_ = pending_ = joined_pending_ = syncs_ = 0;", "passes_ = syncs_ = 0;"),
    Fault("sync/sync_driver.cpp", "gradients written in flight need no second synchronization",
          "trailer.needs_another_sync = store_.any_written_in_flight();", "trailer.needs_another_sync = false;"),
    Fault("sync/sync_driver.cpp", "a bucket in flight is written before its sum has ended",
          "sync_->wait_for_bucket(*bucket);", ""),
    Fault("sync/gradient_sync.cpp", "an overflow in a later bucket hides one in an earlier bucket",
          "state->overflowed = state->overflowed || !all_finite(bucket);", "state->overflowed = !all_finite(bucket);"),

    Fault("comm/shm/sequence_counter.cpp", "waiters are not woken",
          "if (waiters_.load(std::memory_order_seq_cst) > 0) futex_wake_all(value_);", "", ON_THREADS,
          explained="a waiter sleeps at most 20 ms, so a missing wake delays it and changes no result; tests assert no times"),
    Fault("comm/shm/sequence_counter.cpp", "a counter does not wrap around",
          "static_cast<std::int32_t>(value_.load(std::memory_order_seq_cst) - value) >= 0;",
          "value_.load(std::memory_order_seq_cst) >= value;", ON_THREADS),
    Fault("comm/shm/in_place_all_reduce.cpp", "a sum begins before all ranks have written",
          "node_->wait_for_all(&RankState::reductions_started, number_, {operation_});", "", ON_THREADS),
    Fault("comm/reduction/reduce_tree.cpp", "a mean is a sum",
          "op == ReduceOp::mean ? static_cast<double>(size) : 1};", "static_cast<double>(size / size)};", ON_THREADS),
    Fault("comm/reduction/reduce_tree.cpp", "half-precision values are rounded after each addition",
          "dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;", "dtype;", ON_THREADS),
    Fault("comm/reduction/partition.cpp", "the last chunk of a shard is left out",
          "done < shard.length; done += chunk_elements", "done + chunk_elements <= shard.length; done += chunk_elements", ON_THREADS),
    Fault("comm/reduction/wire_codec.cpp", "the scale for the wire is not undone", "if (scale != 1) to.mul_(1 / scale);", "",
          ON_THREADS),
    Fault("comm/reduction/int8_blocks.cpp", "small values beside large ones vanish in every step",
          "random_of(values[i], static_cast<std::uint32_t>(begin + i));", "0.5F;", ON_THREADS),
    Fault("comm/algorithms/direct_all_reduce.cpp", "the owner of a chunk keeps values that are not rounded like those it sends",
          "if (codec_) codec_->decode(as_bytes(chunk.wire), as_floats(chunk.values));", "", ON_THREADS),
    Fault("comm/algorithms/recursive_halving_all_reduce.cpp", "contributions are added in the order of their arrival",
          "add(adds_right ? own_chunk : received, adds_right ? received : own_chunk, own_chunk, reduction);",
          "(void)adds_right;\n    add(received, own_chunk, own_chunk, reduction);", ON_THREADS),
    Fault("comm/operation_queue.cpp", "an exception does not end operations in flight",
          "is_unwinding_ = true;\n  backend_->close();", "", ON_THREADS),
    Fault("comm/operation_queue.cpp", "ranks may make different calls",
          "check_signatures(gathered.by_rank, call.operation);", "", ON_THREADS),

    Fault("device/side_stream.cpp", "an event does not wait for its stream",
          "event_->record(*stream);", ""),
    Fault("device/side_stream.cpp", "the current stream does not wait for an event",
          "if (event_) event_->block(c10::impl::VirtualGuardImpl(device_->type()).getStream(*device_));", ""),
    Fault("device/side_stream.cpp", "the side stream is the current stream",
          "getStreamFromGlobalPool(device, high_priority)", "getStream((void(high_priority), device))"),
    Fault("device/side_stream.cpp", "memory that a side stream uses is reused when it is freed",
          "c10::impl::VirtualGuardImpl(stream_->device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), *stream_);", ""),

    Fault("checkpoint/file.cpp", "a file is not synchronized",
          'if (until_not_interrupted([&] { return files_.sync(descriptor_.number()); }) != 0) fail("sync", path_, errno);', ""),
    Fault("checkpoint/file.cpp", "a folder is not synchronized",
          "if (until_not_interrupted([&] { return files.sync(descriptor.number()); }) == 0) return;", "return;"),
    Fault("checkpoint/write_checkpoint.cpp", "files of other ranks are not checked before the commit",
          "check_presence(partial, manifest.files);", "(void)check_presence;"),
    Fault("checkpoint/checkpoint_folder.cpp", "the worst checkpoint is kept as the best",
          "lower_is_better ? *info.metric < *best->metric : *info.metric > *best->metric",
          "lower_is_better ? *info.metric > *best->metric : *info.metric < *best->metric"),
    Fault("checkpoint/checkpoint_folder.cpp", "a new checkpoint gets the number of the last one",
          "checkpoint::checkpoint_name(number + 1, step)", "checkpoint::checkpoint_name(number, step)"),
    Fault("checkpoint/checkpoint_writer.cpp", "wait() does not wait for the thread that writes",
          "if (thread_.joinable()) thread_.join();", "if (thread_.joinable()) thread_.detach();"),
    Fault("checkpoint/read_checkpoint.cpp", "checksums are not compared",
          'if (actual != expected) fail(name, "is damaged', 'if (actual.size != expected.size) fail(name, "is damaged'),
    Fault("checkpoint/safetensors_layout.cpp", "bytes after the last tensor are accepted",
          "if (covered != data_size) {", "if (covered > data_size) {"),
    Fault("checkpoint/tied_tensors.cpp", "a transposed view counts as the same tensor",
          "a.sizes() == b.sizes() && a.strides() == b.strides() &&", "a.sizes() == b.sizes() &&"),
    Fault("checkpoint/agreement.cpp", "one rank's wrong call hides another rank's failure",
          "only_usage = only_usage && kind == usage;", "only_usage = kind == usage;"),

    Fault("optim/clip_grad.cpp", "small norms are scaled up, large ones are left",
          "if (factor < 1.0) {", "if (factor > 1.0) {"),
    Fault("optim/clip_grad.cpp", "rows that occur twice in a sparse gradient are two values of the norm",
          "if (grad.layout() == at::kSparse && !grad.is_coalesced()) grad = grad.coalesce();", ""),
    Fault("optim/sum_of_squares.cpp", "the end of a tensor is left out of the norm",
          "sums[block] = sum_of_block(elements + begin, std::min(block_length, count - begin));",
          "sums[block] = sum_of_block(elements + begin, std::min(block_length, count - begin) / lanes * lanes);"),
    Fault("optim/fused_step.cpp", "a derived optimizer is stepped like its base class",
          "if (typeid(optimizer) != typeid(typename Rule::Optimizer)) return false;",
          "if (dynamic_cast<typename Rule::Optimizer*>(&optimizer) == nullptr) return false;"),
    Fault("optim/fused_step.cpp", "a gradient in another memory order is stepped",
          "if (parameter.size(i) > 1 && parameter.stride(i) != other.stride(i)) return false;", ""),
    Fault("optim/scheduler.cpp", "rates compound",
          "enter({.position = position, .applied = position, .base_rates = state_->base_rates});",
          "enter({.position = position, .applied = position, .base_rates = last_rates()});"),
    Fault("optim/plateau.cpp", "there is no cooldown after a reduction",
          "state_->cooldown_counter = options_.cooldown;", ""),
    Fault("optim/plateau.cpp", "a relative threshold has the wrong sign",
          "best * (1.0 - options_.threshold)", "best * (1.0 + options_.threshold)"),
    Fault("optim/schedule_rule.cpp", "the last, short window of an epoch is not counted",
          "(epoch + accumulation - 1) / accumulation", "epoch / accumulation"),
    Fault("optim/warmup_stable_decay.cpp", "the rate jumps to its end when the decay begins",
          "if (decaying >= decay_steps) return lowest;", "if (decaying <= decay_steps) return lowest;"),
]


def path_of(fault, root):
    return root / "src" / fault.file


def problems(faults, root):
    """Returns what is wrong with the table."""
    wrong = []
    for fault in faults:
        name = f"{fault.file} ({fault.what})"
        file = path_of(fault, root)
        count = file.read_text().count(fault.old) if file.exists() and fault.old else 0
        if count != 1:
            wrong.append(f"{name}: the text to replace occurs {count} times, not once: {fault.old}")
        if fault.old == fault.new:
            wrong.append(f"{name}: changes nothing")
        if not (root / "tests" / fault.folder).is_dir():
            wrong.append(f"{name}: there are no tests/{fault.folder}")
    for folder in sorted({fault.folder for fault in faults}):
        count = sum(fault.folder == folder for fault in faults)
        if count > MOST_IN_A_FOLDER:
            wrong.append(f"{folder} has {count} faults, more than {MOST_IN_A_FOLDER}")
    if len({fault.identity() for fault in faults}) != len(faults):
        wrong.append("a fault is listed twice")
    return wrong


def copy_sources():
    """Makes the copy equal to the sources. Files that are equal keep their times, so that they are not compiled again."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True).stdout.split(b"\0")
    names = {os.fsdecode(name) for name in listed if name and (ROOT / os.fsdecode(name)).is_file()}
    for name in sorted(names):
        source, target = ROOT / name, COPY / name
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        target.touch()
    kept = {"build", "results.json"}
    for path in COPY.rglob("*"):
        name = path.relative_to(COPY)
        if name.parts[0] not in kept and path.is_file() and str(name) not in names:
            path.unlink()


def build(program):
    """Returns whether the test program was built."""
    environment = dict(os.environ, CCACHE_BASEDIR=str(COPY), CCACHE_NOHASHDIR="1")
    if not (COPY / "build" / "build.ninja").exists():
        command = ["cmake", "--preset", "release"] + ([f"-DLIBTORCH={os.environ['LIBTORCH']}"] if "LIBTORCH" in os.environ else [])
        subprocess.run(command, cwd=COPY, env=environment, check=True, stdout=subprocess.DEVNULL)
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
    done = subprocess.run(["cmake", "--build", "build", "--parallel", jobs, "--target", program], cwd=COPY, env=environment,
                          capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
    return done.returncode == 0


def passes(program, tests):
    """Returns whether the tests pass. They and the processes that they start are ended after TEST_SECONDS."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", GTEST_FAIL_FAST="1")
    process = subprocess.Popen([str(COPY / "build" / "tests" / program), f"--gtest_filter={tests}"], cwd=COPY / "build" / "tests",
                               env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(TEST_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def try_fault(fault):
    """Returns "killed", "survived" or "not compiled". Restores the file."""
    file = path_of(fault, COPY)
    original = file.read_text()
    try:
        file.write_text(original.replace(fault.old, fault.new))
        if not build(fault.program):
            return "not compiled"
        return "survived" if passes(fault.program, fault.tests) else "killed"
    finally:
        file.write_text(original)


def key_of(fault, root):
    """Returns the key of a fault's result: it changes with the fault, its file, and the tests that must notice it."""
    folders = (root / "tests" / fault.folder, root / "tests" / "support")
    files = [path_of(fault, root)] + sorted(file for folder in folders for file in folder.rglob("*") if file.is_file())
    text = b"\0".join(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() for file in files)
    return f"{fault.identity()} {hashlib.sha256(text).hexdigest()[:16]}"


def read_results():
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write_result(results, key, value):
    results[key] = value
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1))
    partial.replace(RESULTS)


def run(faults, again):
    COPY.mkdir(exist_ok=True)
    copy_sources()
    results = read_results()
    outcome, sound = {}, set()
    for fault in faults:
        key = key_of(fault, COPY)
        if key in results and not again:
            outcome[fault] = results[key]
            print(f"{outcome[fault]:12} src/{fault.file}: {fault.what} (an earlier run)", flush=True)
            continue
        if (fault.program, fault.tests) not in sound:
            if not build(fault.program):
                sys.exit(f"{fault.program} cannot be built without a fault")
            if not passes(fault.program, fault.tests):
                sys.exit(f"{fault.program} --gtest_filter={fault.tests} fails without a fault")
            sound.add((fault.program, fault.tests))
        began = time.monotonic()
        outcome[fault] = try_fault(fault)
        print(f"{outcome[fault]:12} src/{fault.file}: {fault.what} ({time.monotonic() - began:.0f} s)", flush=True)
        if outcome[fault] != "not compiled":
            write_result(results, key, outcome[fault])
    bad = [fault for fault in faults if outcome[fault] != "killed"]
    unexplained = [fault for fault in bad if not fault.explained]
    print(f"\n{len(faults) - len(bad)} of {len(faults)} faults were noticed.")
    for fault in bad:
        print(f"{outcome[fault]}: src/{fault.file}: {fault.what}\n    - {fault.old}\n    + {fault.new}")
        if fault.explained:
            print(f"    explained: {fault.explained}")
    return 1 if unexplained else 0


def chosen(words):
    """Returns the faults of the folders and files that the words name; all without words."""
    known = {fault.folder for fault in FAULTS} | {fault.file for fault in FAULTS}
    unknown = sorted(set(words) - known)
    if unknown:
        sys.exit(f"no fault is in {', '.join(unknown)}: choose from {', '.join(sorted(known))}")
    return [fault for fault in FAULTS if not words or fault.folder in words or fault.file in words]


def self_test():
    assert problems([Fault("sync/none.cpp", "x", "a", "b")], ROOT) != []
    assert problems([Fault("sync/window.cpp", "x", "a", "b")], ROOT) != []
    assert any("12" in one for one in problems([Fault("sync/window.cpp", str(i), "a", "b") for i in range(13)], ROOT))
    keys = set()
    with tempfile.TemporaryDirectory() as scratch:
        for file, text in (("src/sync/a.cpp", "a"), ("tests/sync/a_test.cpp", "a"), ("tests/support/a.h", "a"),
                           ("tests/sync/a_test.cpp", "b")):
            path = Path(scratch, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            keys.add(key_of(Fault("sync/a.cpp", "x", "a", "b"), Path(scratch)))
    assert len(keys) == 4, keys
    wrong = problems(FAULTS, ROOT)
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"mutate: {len(FAULTS)} faults, each text occurs once")


def main():
    words = sys.argv[1:]
    if words == ["--self-test"]:
        self_test()
    elif words[:1] == ["--list"]:
        for fault in chosen(words[1:]):
            print(f"src/{fault.file}: {fault.what}\n    - {fault.old}\n    + {fault.new}")
    elif words[:1] == ["--run"]:
        self_test()
        # As Ctrl+C: so that the file is restored.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        sys.exit(run(chosen([word for word in words[1:] if word != "--again"]), "--again" in words))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
