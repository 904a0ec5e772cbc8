#pragma once
// Collectives over nested structures of tensors (see nested.h) and over objects (see objects.h), as Accelerate has
// them. Every rank of the communicator must call them, in the same order, with the same structure, dtypes and
// arguments; what must be equal of the shapes stands with each. Ranks compare all that before they exchange data:
// MismatchError on all of them names the first difference, and the communicator stays usable. Arguments stay untouched,
// results are new tensors outside autograd. Tensors are dense; those on a device travel through the host's memory.
// Deadlines and failures of ranks are the communicator's. docs/collectives.md has a table.
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"
#include "tutti/detail/data/loader_position.h"
#include "tutti/train/nested.h"
#include "tutti/train/objects.h"

namespace tutti {

/// How pad_across_processes() pads.
struct PadOptions {
  std::int64_t dim = 0;    ///< negative: from the end
  double pad_index = 0;    ///< what is filled in
  bool pad_first = false;  ///< fill in before the data instead of after them
};

namespace detail {

using Tensors = std::vector<at::Tensor>;
using NestedTensors = std::vector<NestedTensor>;

Tensors gather_tensors(const Communicator& communicator, const NestedTensors& local, const CallOptions& call);
Tensors reduce_tensors(const Communicator& communicator, const NestedTensors& local, ReduceOp op, double scale,
                       const CallOptions& call);
Tensors broadcast_tensors(const Communicator& communicator, const NestedTensors& local, int from_process,
                          const CallOptions& call);
Tensors pad_tensors(const Communicator& communicator, const NestedTensors& local, const PadOptions& options,
                    const CallOptions& call);

/// Which samples of a batch a metric counts.
struct CountedSamples {
  std::int64_t count = 0;  ///< of the first ones
  std::string error{};     ///< why that cannot be said; empty where it can
};
/// Pure. `position` is null outside of loops; `rows`: of what stands for the batch, -1 for something without any.
CountedSamples counted_samples(const LoaderPosition* position, std::int64_t rows);

Tensors gather_counted(const Communicator& communicator, const NestedTensors& local, const LoaderPosition* position,
                       const CallOptions& call);

/// An object's bytes, or why there are none: then all ranks throw UsageError.
struct Packed {
  std::string bytes{};
  std::string error{};
};
template <Packable T>
Packed packed(const T& object) {
  try {
    return {.bytes = pack(object)};
  } catch (const UsageError& error) {
    return {.error = error.what()};
  }
}
std::vector<std::string> gather_bytes(const Communicator& communicator, const std::string& what, const Packed& local,
                                      const CallOptions& call);
std::string broadcast_bytes(const Communicator& communicator, const std::string& what, const Packed& local,
                            int from_process, const CallOptions& call);

template <typename T>
std::vector<T> unpack_all(const std::vector<std::string>& ranks) {
  std::vector<T> all;
  for (const std::string& bytes : ranks) {
    for (auto&& object : unpack<std::vector<T>>(bytes)) all.push_back(std::move(object));
  }
  return all;
}

}  // namespace detail

/// Every rank's tensors, one after the other by rank along dim 0; a tensor without dimensions counts as one row. Shapes
/// must be equal: see pad_across_processes() and gather_object().
template <Nested T>
[[nodiscard]] T gather(const Communicator& communicator, const T& value, const CallOptions& call = {}) {
  return with_tensors(value, detail::gather_tensors(communicator, nested_tensors(value), call));
}

/// The combination of every rank's tensors, times `scale`. Shapes must be equal. mean, and a scale other than 1, need
/// floating dtypes: UsageError on all ranks.
template <Nested T>
[[nodiscard]] T reduce(const Communicator& communicator, const T& value, ReduceOp op = ReduceOp::sum,
                       double scale = 1.0, const CallOptions& call = {}) {
  return with_tensors(value, detail::reduce_tensors(communicator, nested_tensors(value), op, scale, call));
}

/// What rank `from_process` has. Shapes must be equal.
template <Nested T>
[[nodiscard]] T broadcast(const Communicator& communicator, const T& value, int from_process = 0,
                          const CallOptions& call = {}) {
  return with_tensors(value, detail::broadcast_tensors(communicator, nested_tensors(value), from_process, call));
}

/// Each tensor filled up with `pad_index` to the largest size along `dim` among ranks, at its end or its beginning. The
/// numbers of dimensions must be equal, other sizes may differ. A tensor without that dimension stays as it is.
template <Nested T>
[[nodiscard]] T pad_across_processes(const Communicator& communicator, const T& value, const PadOptions& options = {},
                                     const CallOptions& call = {}) {
  return with_tensors(value, detail::pad_tensors(communicator, nested_tensors(value), options, call));
}

/// gather() of what was computed from a batch of the innermost loop at `position`, without samples that the loader
/// repeated: over an epoch, each sample once. Rows along dim 0 must be as many as the batch has samples; ranks may have
/// different numbers of them. Throws UsageError on all ranks where that is not so, outside of loops, and where ranks
/// receive different numbers of batches.
template <Nested T>
[[nodiscard]] T gather_for_metrics(const Communicator& communicator, const T& value, const LoaderPosition* position,
                                   const CallOptions& call = {}) {
  return with_tensors(value, detail::gather_counted(communicator, nested_tensors(value), position, call));
}

/// The same for objects, one for each sample of the batch.
template <Packable T>
requires(!Nested<std::vector<T>>)
    [[nodiscard]] std::vector<T> gather_for_metrics(const Communicator& communicator, const std::vector<T>& samples,
                                                    const LoaderPosition* position, const CallOptions& call = {}) {
  const auto counted = detail::counted_samples(position, static_cast<std::int64_t>(samples.size()));
  detail::Packed local{.error = counted.error};
  if (counted.error.empty()) local = detail::packed(std::vector<T>(samples.begin(), samples.begin() + counted.count));
  const std::string what = "gather_for_metrics(" + detail::ObjectCodec<std::vector<T>>::name() + ")";
  return detail::unpack_all<T>(detail::gather_bytes(communicator, what, local, call));
}

/// Every rank's objects, one after the other by rank. They may be differently many, and their tensors of any shape.
template <Packable T>
[[nodiscard]] std::vector<T> gather_object(const Communicator& communicator, const std::vector<T>& objects,
                                           const CallOptions& call = {}) {
  const std::string what = "gather_object(" + detail::ObjectCodec<std::vector<T>>::name() + ")";
  return detail::unpack_all<T>(detail::gather_bytes(communicator, what, detail::packed(objects), call));
}

/// The object of rank `from_process`; those of the others may be anything of its type.
template <Packable T>
[[nodiscard]] T broadcast_object(const Communicator& communicator, const T& object, int from_process = 0,
                                 const CallOptions& call = {}) {
  const std::string what = "broadcast_object(" + detail::ObjectCodec<T>::name() + ")";
  const auto local = communicator.rank() == from_process ? detail::packed(object) : detail::Packed();
  return unpack<T>(detail::broadcast_bytes(communicator, what, local, from_process, call));
}

}  // namespace tutti
