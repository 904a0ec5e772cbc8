#pragma once
// The headers of a collective's tensors, which ranks compare before they send data.
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/detail/train/nested.h"

namespace tutti {

struct TensorHeader {
  static constexpr std::int32_t undefined = -1;
  static constexpr std::int32_t not_dense = -2;

  std::string path{};
  std::int32_t dtype = undefined;
  std::vector<std::int64_t> sizes{};
  std::int32_t device_type = 0;  ///< c10::DeviceType

  /// For messages: "['logits'] float [2, 3]".
  std::string describe() const;
};
using TensorHeaders = std::vector<TensorHeader>;  // the headers of one rank

/// Which parts of shapes must be equal: all sizes, all but dim 0, or the number of dimensions.
enum class SameShape { all, but_rows, dims };

/// No I/O. Throws MismatchError with the first difference unless all ranks have the same structure and dtypes, and
/// shapes that are equal as `same` requires. Throws UsageError for tensors that are not dense.
void require_same(const std::string& what, const std::vector<TensorHeaders>& ranks, SameShape same);

/// Returns the headers of all ranks. If the `error` of a rank is not empty, all ranks throw UsageError. `what` is the
/// call signature: the call with all arguments that must be equal on all ranks.
std::vector<TensorHeaders> exchange_headers(const Communicator& communicator, const std::string& what,
                                            const std::vector<NestedTensor>& local, SameShape same,
                                            const CallOptions& call, const std::string& error = "");

/// No I/O. Whether tensor `index` is on a device of one type on all ranks, so that it can be exchanged there.
bool on_same_device_type(const std::vector<TensorHeaders>& ranks, std::size_t index);

/// `call` with its name in messages: "gather, 'validation loss'".
CallOptions named(const std::string& what, const CallOptions& call);

/// No I/O. Throws UsageError with the ranks and their errors unless all of `errors` are empty.
void throw_errors(const std::string& what, const std::vector<std::string>& errors);

}  // namespace tutti
