#pragma once
// A backend that sums the memory of any device through a backend of the host.
//
// Each bucket has a staging buffer in host memory, which exists as long as the bucket. An all-reduce has these steps:
//   start_all_reduce        on the program's thread: a side stream waits for the program's stream and copies the bucket
//                           to pinned memory. The host does not wait.
//   finish_reduce_scatter   on the queue thread: waits for the copy, and runs the host's reduce-scatter.
//   wait                    on the queue thread: completes the host's all-reduce, and copies the result back on another
//                           side stream.
//   block_current_stream    makes the program's stream wait for that copy.
// The host's all-reduces must start in one order on all ranks, so those of host tensors start on the queue thread too.
//
// The copies of a bucket run beside the host's sums of other buckets and beside the program's kernels.
//
// The bits are those of the host's backend, and so are gradient codecs and errors. Ranks may share a device. All other
// collectives take host tensors: the communicator stages device tensors (comm/device_call.h).
#include <memory>

#include "comm/backend/backend.h"

namespace tutti::comm {

/// The backend for the accelerator of this process. Its name is "staged + " and the name of `host`.
std::shared_ptr<Backend> make_staged_backend(std::shared_ptr<Backend> host);

}  // namespace tutti::comm
