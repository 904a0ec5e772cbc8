#pragma once
// What ranks tell one another about the tensors of a collective before these travel.
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/train/nested.h"

namespace tutti {

struct TensorHeader {
  static constexpr std::int32_t undefined = -1;
  static constexpr std::int32_t not_dense = -2;

  std::string path{};
  std::int32_t dtype = undefined;
  std::vector<std::int64_t> sizes{};

  /// "['logits'] float [2, 3]"
  std::string describe() const;
};
using TensorHeaders = std::vector<TensorHeader>;  // of one rank

/// How far shapes must be equal.
enum class SameShape { all, but_rows, dims };

/// Pure. Throws MismatchError, naming the first difference, unless all ranks have the same structure, dtypes, and
/// shapes as far as `same` demands; and UsageError for tensors that cannot travel.
void require_same(const std::string& what, const std::vector<TensorHeaders>& ranks, SameShape same);

/// Every rank's headers. Where some rank's `error` is not empty, all throw UsageError. `what` reads like the call, with
/// everything in it that must be equal on all ranks.
std::vector<TensorHeaders> exchange_headers(const Communicator& communicator, const std::string& what,
                                            const std::vector<NestedTensor>& local, SameShape same,
                                            const CallOptions& call, const std::string& error = "");

/// "gather, 'validation loss'": what a message says of a call.
CallOptions named(const std::string& what, const CallOptions& call);

/// Pure. Throws UsageError, naming the ranks, unless all of `errors` are empty.
void throw_errors(const std::string& what, const std::vector<std::string>& errors);

}  // namespace tutti
