#pragma once
// CPU tensors and meta tensors that stand for tensors of the simulated accelerator in a call of an operator.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <unordered_map>

namespace tutti::test::simulated {

bool is_on_device(const at::Tensor& tensor);

/// Runs operators below autograd and autocast while it exists.
struct BelowAutograd {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
};

/// A CPU tensor over the memory of `tensor`, for kernels. Does not keep the memory: a kernel of a GPU holds an address.
at::Tensor alias_for_kernels(const at::Tensor& tensor);

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& action);

enum class Purpose {
  shapes,     ///< meta tensors: the operator computes shapes
  rehearsal,  ///< CPU tensors full of zeros, for an operator that has no kernel for meta tensors
  kernel,     ///< aliases of the device's memory
};

/// Translates the arguments of one call. A tensor that occurs twice is translated once.
class ArgumentTranslator {
 public:
  explicit ArgumentTranslator(Purpose purpose) : purpose_(purpose) {}

  c10::IValue operator()(const c10::IValue& value);
  c10::Device device() const { return purpose_ == Purpose::shapes ? c10::kMeta : c10::kCPU; }

 private:
  at::Tensor translated(const at::Tensor& tensor);

  Purpose purpose_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> known_;
};

}  // namespace tutti::test::simulated
