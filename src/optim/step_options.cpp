#include "optim/step_options.h"

#include <c10/util/Exception.h>
#include <torch/optim/lbfgs.h>

#include <concepts>
#include <cstdint>
#include <tuple>
#include <utility>

#include "optim/optimizer_fields.h"
#include "tutti/core/error.h"

namespace tutti {

template <OneOf<torch::optim::LBFGSOptions> Options, typename Field>
void visit_options(Options& options, Field field) {
  field("lr", options.lr());
  field("max_iter", static_cast<double>(options.max_iter()));
  field("max_eval", static_cast<double>(options.max_eval().value_or(-1)));
  field("tolerance_grad", options.tolerance_grad());
  field("tolerance_change", options.tolerance_change());
  field("history_size", static_cast<double>(options.history_size()));
  field("line_search_fn", options.line_search_fn().has_value());
}

namespace {

using torch::optim::OptimizerOptions;

/// Returns false, and passes nothing, if `options` are not of the type Options.
template <typename Options>
bool visit_if(const OptimizerOptions& options, std::int64_t group, const StepOptionSink& sink) {
  const auto* known = dynamic_cast<const Options*>(&options);
  if (known == nullptr) return false;
  visit_options(*known, [&](const char* name, const auto& value) {
    if constexpr (requires { std::get<0>(value); }) {
      sink("beta1", group, std::get<0>(value));
      sink("beta2", group, std::get<1>(value));
    } else {
      sink(name, group, static_cast<double>(value));
    }
  });
  return true;
}

bool visit_known(const OptimizerOptions& options, std::int64_t group, const StepOptionSink& sink) {
  return visit_if<torch::optim::AdamWOptions>(options, group, sink) ||
         visit_if<torch::optim::SGDOptions>(options, group, sink) ||
         visit_if<torch::optim::AdamOptions>(options, group, sink) ||
         visit_if<torch::optim::RMSpropOptions>(options, group, sink) ||
         visit_if<torch::optim::AdagradOptions>(options, group, sink) ||
         visit_if<torch::optim::LBFGSOptions>(options, group, sink);
}

}  // namespace

// LibTorch's get_lr() throws for options without a learning rate.
bool has_learning_rate(const torch::optim::Optimizer& optimizer) {
  try {
    for (const auto& group : optimizer.param_groups()) group.options().get_lr();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

void require_learning_rate(const torch::optim::Optimizer& optimizer, const std::string& user) {
  if (has_learning_rate(optimizer)) return;
  throw UsageError(user +
                   ": the optimizer has no learning rate: its options have no get_lr(). Override get_lr() and "
                   "set_lr(), or prepare it without a schedule");
}

std::vector<double> learning_rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

StepOptions step_options_of(std::shared_ptr<const torch::optim::Optimizer> optimizer) {
  const bool has_rate = has_learning_rate(*optimizer);
  return [optimizer = std::move(optimizer), has_rate](const StepOptionSink& sink) {
    std::int64_t number = 0;
    for (const auto& group : optimizer->param_groups()) {
      sink("number of parameters", number, static_cast<double>(group.params().size()));
      if (!visit_known(group.options(), number, sink) && has_rate) sink("lr", number, group.options().get_lr());
      ++number;
    }
  };
}

}  // namespace tutti
