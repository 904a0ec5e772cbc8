#pragma once
// The types that prepare() and other calls of an Accelerator accept, distinguished at compile time.
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace tutti::detail {

/// A torch::nn::ModuleHolder or a shared_ptr to a module.
template <typename T>
concept model_argument = requires(const std::remove_cvref_t<T>& object) {
  { *object } -> std::convertible_to<const torch::nn::Module&>;
};

/// A model as an argument of a call. References the module, which must outlive the call.
class ModelRef {
 public:
  /// From a torch::nn::ModuleHolder or a shared_ptr to a module.
  template <model_argument T>
  ModelRef(const T& model) : module_(&static_cast<const torch::nn::Module&>(*model)) {}
  /// From a module.
  ModelRef(const torch::nn::Module& module) : module_(&module) {}

  const torch::nn::Module& operator*() const { return *module_; }
  const torch::nn::Module* operator->() const { return module_; }

 private:
  const torch::nn::Module* module_;
};

template <typename T>
struct is_owned_optimizer : std::false_type {};
template <typename T>
requires std::derived_from<T, torch::optim::Optimizer>
struct is_owned_optimizer<std::unique_ptr<T>> : std::true_type {
};
template <typename T>
requires std::derived_from<T, torch::optim::Optimizer>
struct is_owned_optimizer<std::shared_ptr<T>> : std::true_type {
};

/// A LibTorch optimizer, or a unique_ptr or shared_ptr to one.
template <typename T>
concept optimizer_argument = std::derived_from<std::remove_cvref_t<T>, torch::optim::Optimizer> ||
    is_owned_optimizer<std::remove_cvref_t<T>>::value;

template <model_argument T>
std::shared_ptr<torch::nn::Module> shared_module_of(const T& model) {
  if constexpr (std::convertible_to<const T&, std::shared_ptr<torch::nn::Module>>) {
    return model;
  } else {
    return model.ptr();
  }
}

/// References an lvalue and owns an rvalue.
template <typename T>
std::shared_ptr<torch::optim::Optimizer> share_optimizer(T&& optimizer) {
  using Object = std::remove_cvref_t<T>;
  if constexpr (std::derived_from<Object, torch::optim::Optimizer>) {
    if constexpr (std::is_lvalue_reference_v<T>) {
      return std::shared_ptr<torch::optim::Optimizer>(std::shared_ptr<void>(), &optimizer);
    } else {
      return std::make_shared<Object>(std::forward<T>(optimizer));
    }
  } else {
    return std::shared_ptr<torch::optim::Optimizer>(std::forward<T>(optimizer));
  }
}

}  // namespace tutti::detail
