#pragma once
// Accelerator::prepare().
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <concepts>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tutti/detail/train/prepare_traits.h"
#include "tutti/train/accelerator.h"

namespace tutti {

template <typename T>
auto Accelerator::prepare_one(T&& object, std::optional<Optimizer>& previous) {
  using Object = std::remove_cvref_t<T>;
  if constexpr (detail::model_argument<Object>) {
    // For an lvalue T is a reference, and the caller keeps the object. An rvalue is moved into the tuple.
    return std::tuple<T>(std::forward<T>(object));
  } else if constexpr (std::same_as<Object, Optimizer>) {
    previous.emplace(prepare_optimizer(object.optimizer_));
    return std::tuple<Optimizer>(*previous);
  } else if constexpr (detail::optimizer_argument<Object>) {
    previous.emplace(prepare_optimizer(detail::share_optimizer(std::forward<T>(object))));
    return std::tuple<Optimizer>(*previous);
  } else if constexpr (std::same_as<Object, PlateauOptions>) {
    return std::tuple<ReduceLROnPlateau>(prepare_plateau(previous, object));
  } else if constexpr (std::derived_from<Object, torch::nn::Module>) {
    static_assert(!std::derived_from<Object, torch::nn::Module>,
                  "prepare() takes the module's holder or a shared_ptr to it: prepare(net), not prepare(*net)");
    return std::tuple<T>(std::forward<T>(object));  // without a return there would be a second, less readable error
  } else {
    static_assert(!std::derived_from<Object, torch::optim::LRScheduler>,
                  "prepare(): a LibTorch scheduler keeps its position to itself and cannot be saved: use tutti's "
                  "schedule of the same name (step, reduce_lr_on_plateau, ...)");
    static_assert(std::convertible_to<Object, LrSchedule>,
                  "prepare() takes models (module holders or shared_ptr to a module), optimizers and schedules; a "
                  "LibTorch data loader cannot be re-sharded: use data_loader(dataset)");
    return std::tuple<Scheduler>(prepare_schedule(previous, std::forward<T>(object)));
  }
}

template <typename... Ts>
auto Accelerator::prepare(Ts&&... objects) {
  // Models first, in any position: the parameters of an optimizer must belong to a prepared model.
  const auto model_first = [this]<typename T>(const T& object) {
    if constexpr (detail::model_argument<T>) prepare_model(detail::shared_module_of(object));
  };
  (model_first(objects), ...);
  std::optional<Optimizer> previous;
  // Braces, because function arguments have no order of evaluation.
  std::tuple<decltype(prepare_one(std::forward<Ts>(objects), previous))...> parts{
      prepare_one(std::forward<Ts>(objects), previous)...};
  complete_models();
  return std::apply([](auto&&... part) { return std::tuple_cat(std::move(part)...); }, std::move(parts));
}

}  // namespace tutti
