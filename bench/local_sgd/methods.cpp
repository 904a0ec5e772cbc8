#include "local_sgd/methods.h"

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti::bench {

std::vector<Method> all_methods(const LocalSGDBenchOptions& options) {
  const auto with = [&options](const std::string& name, const LocalUpdateOptions& engine) {
    return Method{.name = name, .options = {.local_sgd_steps = options.local_steps, .engine = engine}};
  };
  const std::int64_t fragments = 4;
  const std::int64_t overlap = std::max<std::int64_t>(1, options.local_steps / fragments - 1);
  const DiLoCoOptions outer{.lr = 0.7, .momentum = 0.6};
  return {{.name = "synchronous", .options = {.enabled = false}},
          with("local_sgd", {}),
          with("slowmo", {.method = OuterMethod::slowmo, .slowmo = {.alpha = 1, .beta = 0.2}}),
          with("diloco", {.method = OuterMethod::diloco, .diloco = outer}),
          with("diloco_int8", {.method = OuterMethod::diloco, .diloco = outer, .wire = WireFormat::int8}),
          with("streaming",
               {.method = OuterMethod::diloco,
                .diloco = outer,
                .streaming = {.fragments = static_cast<int>(fragments), .overlap_steps = overlap, .mix = 0.5}}),
          with("streaming_int8",
               {.method = OuterMethod::diloco,
                .diloco = outer,
                .streaming = {.fragments = static_cast<int>(fragments), .overlap_steps = overlap, .mix = 0.5},
                .wire = WireFormat::int8})};
}

Method method_named(const std::string& name, const LocalSGDBenchOptions& options) {
  const auto methods = all_methods(options);
  const auto found = std::ranges::find(methods, name, &Method::name);
  if (found == methods.end()) throw UsageError("there is no method '" + name + "': there are " + known_methods());
  return *found;
}

std::string known_methods() {
  std::string names;
  for (const Method& method : all_methods({})) names += (names.empty() ? "" : ", ") + method.name;
  return names;
}

}  // namespace tutti::bench
