#pragma once
// Checks that all ranks have the same parameters and buffers. Gradient buckets are sent without call signatures
// afterwards.
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/reducer.h"

namespace torch::nn {
class Module;
}

namespace tutti::sync {

/// Compares names, shapes, dtypes, requires_grad and bucket sizes across ranks. Throws MismatchError on every rank,
/// naming the first parameter that differs, and UsageError for parameters that cannot be synchronized. Every rank must
/// call it.
void check_same_model(const std::vector<NamedParameter>& parameters, const ReducerOptions& options,
                      const Communicator& communicator);

/// Compares names, shapes and dtypes of buffers across ranks. Returns those that are equal on all ranks and that can be
/// sent. Unless `may_differ`, throws MismatchError on every rank, naming the first buffer that differs, and UsageError
/// for a buffer that cannot be sent. Every rank must call it.
std::vector<at::Tensor> check_same_buffers(const std::vector<NamedParameter>& buffers, bool may_differ,
                                           const Communicator& communicator);

/// All buffers of `module` by name; undefined ones too.
std::vector<NamedParameter> named_buffers_of(const torch::nn::Module& module);

}  // namespace tutti::sync
