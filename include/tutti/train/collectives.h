#pragma once
// Collectives over nested structures of tensors (see nested.h) and over objects (see objects.h), as in Accelerate.
//
// Every rank of the communicator must call them, in the same order, with the same structure, dtypes and arguments. Each
// function says which sizes must be equal. Ranks compare the call signatures before they exchange data. If these
// differ, all ranks throw MismatchError with the first difference, and the communicator stays usable. Arguments are not
// changed. Results are new tensors outside autograd. Tensors must be dense; tensors on a device are copied through host
// memory. Timeouts and failures of ranks are as for the communicator. docs/collectives.md has a table.
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"
#include "tutti/detail/data/loader_position.h"
#include "tutti/detail/train/nested.h"
#include "tutti/detail/train/objects.h"

namespace tutti {

/// Options of pad_across_processes().
struct PadOptions {
  std::int64_t dim = 0;    ///< dimension to pad; negative: from the end
  double pad_index = 0;    ///< padding value
  bool pad_first = false;  ///< pad before the data instead of after them
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

/// The samples of a batch that a metric counts.
struct CountedSamples {
  std::int64_t count = 0;  ///< the first `count` samples
  std::string error{};     ///< the reason why the number is unknown; else empty
};
/// No I/O. `position` is null outside of loops. `rows`: size of the gathered value along dim 0, -1 without dimensions.
CountedSamples counted_samples(const LoaderPosition* position, std::int64_t rows);

Tensors gather_counted(const Communicator& communicator, const NestedTensors& local, const LoaderPosition* position,
                       const CallOptions& call);

/// The bytes of an object, or the error of packing it. With an error all ranks throw UsageError.
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

/// Concatenates the tensors of all ranks along dim 0, in the order of ranks. A tensor without dimensions counts as one
/// row. Shapes must be equal: see pad_across_processes() and gather_object().
template <Nested T>
[[nodiscard]] T gather(const Communicator& communicator, const T& value, const CallOptions& call = {}) {
  return with_tensors(value, detail::gather_tensors(communicator, nested_tensors(value), call));
}

/// Reduces the tensors of all ranks elementwise, and multiplies the result by `scale`. Shapes must be equal. mean, and
/// a scale other than 1, require floating dtypes: UsageError on all ranks.
template <Nested T>
[[nodiscard]] T reduce(const Communicator& communicator, const T& value, ReduceOp op = ReduceOp::sum,
                       double scale = 1.0, const CallOptions& call = {}) {
  return with_tensors(value, detail::reduce_tensors(communicator, nested_tensors(value), op, scale, call));
}

/// Returns the tensors of rank `from_process` on all ranks. Shapes must be equal.
template <Nested T>
[[nodiscard]] T broadcast(const Communicator& communicator, const T& value, int from_process = 0,
                          const CallOptions& call = {}) {
  return with_tensors(value, detail::broadcast_tensors(communicator, nested_tensors(value), from_process, call));
}

/// Pads each tensor with `pad_index` to the largest size along `dim` among ranks, at its end or its beginning. The
/// numbers of dimensions must be equal; sizes may differ. A tensor without that dimension is returned unchanged.
template <Nested T>
[[nodiscard]] T pad_across_processes(const Communicator& communicator, const T& value, const PadOptions& options = {},
                                     const CallOptions& call = {}) {
  return with_tensors(value, detail::pad_tensors(communicator, nested_tensors(value), options, call));
}

/// gather() of a value with one row per sample of the batch at `position`, without samples that the loader repeated:
/// over an epoch each sample is gathered once. Size of dim 0 must be the number of samples, which may differ between
/// ranks. Throws UsageError on all ranks if it is not and outside of loops, and on each rank that has a batch if ranks
/// receive different numbers of batches.
template <Nested T>
[[nodiscard]] T gather_for_metrics(const Communicator& communicator, const T& value, const LoaderPosition* position,
                                   const CallOptions& call = {}) {
  return with_tensors(value, detail::gather_counted(communicator, nested_tensors(value), position, call));
}

/// gather_for_metrics() of objects, one for each sample of the batch.
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

/// Returns the objects of all ranks, in the order of ranks. The numbers of objects and the shapes of tensors may
/// differ. Tensors in the result are in CPU memory.
template <Packable T>
[[nodiscard]] std::vector<T> gather_object(const Communicator& communicator, const std::vector<T>& objects,
                                           const CallOptions& call = {}) {
  const std::string what = "gather_object(" + detail::ObjectCodec<std::vector<T>>::name() + ")";
  return detail::unpack_all<T>(detail::gather_bytes(communicator, what, detail::packed(objects), call));
}

/// Returns the object of rank `from_process` on all ranks. The objects of the other ranks are ignored. Tensors in the
/// result are in CPU memory.
template <Packable T>
[[nodiscard]] T broadcast_object(const Communicator& communicator, const T& object, int from_process = 0,
                                 const CallOptions& call = {}) {
  const std::string what = "broadcast_object(" + detail::ObjectCodec<T>::name() + ")";
  const auto local = communicator.rank() == from_process ? detail::packed(object) : detail::Packed();
  return unpack<T>(detail::broadcast_bytes(communicator, what, local, from_process, call));
}

}  // namespace tutti
