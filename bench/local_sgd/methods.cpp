#include "local_sgd/methods.h"

#include <algorithm>

namespace tutti::bench {

std::vector<Method> all_methods(const LocalSGDBenchOptions& options) {
  const auto every = [](std::int64_t steps, const std::string& name, const LocalSgdAlgorithmOptions& algorithm) {
    return Method{.name = name, .options = {.local_sgd_steps = steps, .algorithm = algorithm}};
  };
  const std::int64_t steps = options.local_steps;
  // Half the bytes in a round, twice as many rounds.
  const std::int64_t twice_as_often = steps / 2 + 1;
  const DiLoCoOptions outer{.lr = options.outer_learning_rate, .momentum = options.outer_momentum};
  const auto stream = [](int fragments, std::int64_t of) {
    return StreamingOptions{.fragments = fragments,
                            .overlap_steps = std::max<std::int64_t>(0, of / fragments - 1),
                            .keep_local_progress = true};
  };
  return {
      {.name = "synchronous", .options = {.enabled = false}},
      {.name = "synchronous_bf16", .options = {.enabled = false}, .gradient_codec = bf16_codec()},
      {.name = "synchronous_int8", .options = {.enabled = false}, .gradient_codec = int8_codec()},
      // Kallusky et al., "SNOO: Step-K Nesterov Outer Optimizer" (2510.15830): the gain of the outer step alone.
      {.name = "synchronous_outer",
       .options = {.enabled = false},
       .outer_alone =
           LocalSgdAlgorithmOptions{.local_steps = steps, .outer_optimizer = OuterOptimizer::diloco, .diloco = outer}},
      every(steps, "local_sgd", {}),
      every(steps, "slowmo", {.outer_optimizer = OuterOptimizer::slowmo, .slowmo = {.alpha = 1, .beta = 0.2}}),
      every(steps, "diloco", {.outer_optimizer = OuterOptimizer::diloco, .diloco = outer}),
      // The interval of the bf16 methods in fp32, which separates the effect of the interval from that of rounding.
      every(twice_as_often, "diloco_often", {.outer_optimizer = OuterOptimizer::diloco, .diloco = outer}),
      every(twice_as_often, "diloco_bf16",
            {.outer_optimizer = OuterOptimizer::diloco, .diloco = outer, .wire = WireFormat::bf16}),
      every(steps, "diloco_int8",
            {.outer_optimizer = OuterOptimizer::diloco, .diloco = outer, .wire = WireFormat::int8}),
      every(steps, "streaming",
            {.outer_optimizer = OuterOptimizer::diloco, .diloco = outer, .streaming = stream(4, steps)}),
      every(twice_as_often, "streaming_bf16",
            {.outer_optimizer = OuterOptimizer::diloco,
             .diloco = outer,
             .streaming = stream(2, twice_as_often),
             .wire = WireFormat::bf16}),
      every(steps, "streaming_int8",
            {.outer_optimizer = OuterOptimizer::diloco,
             .diloco = outer,
             .streaming = stream(4, steps),
             .wire = WireFormat::int8})};
}

std::vector<Method> selected_methods(const LocalSGDBenchOptions& options) {
  const auto methods = all_methods(options);
  if (options.methods.empty()) return methods;
  std::vector<Method> selected;
  for (const auto& name : options.methods) selected.push_back(*std::ranges::find(methods, name, &Method::name));
  return selected;
}

}  // namespace tutti::bench
