#include "train/broadcast_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/agreement.h"
#include "checkpoint/state_json.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {
namespace {

using nlohmann::json;

json tensors_of(const StateDict& state) {
  json tensors = json::object();
  for (const auto& [name, value] : state.values()) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor != nullptr) tensors[name] = {{"dtype", tensor->scalar_type()}, {"shape", tensor->sizes().vec()}};
  }
  return tensors;
}

/// The state with tensors that are allocated but not filled.
StateDict with_empty_tensors(const json& header) {
  StateDict state = checkpoint::state_from_json(header.at("values"));
  for (const auto& [name, tensor] : header.at("tensors").items()) {
    const auto shape = tensor.at("shape").get<std::vector<std::int64_t>>();
    state.set(name, at::empty(shape, tensor.at("dtype").get<at::ScalarType>()));
  }
  return state;
}

}  // namespace

StateDict broadcast_state(const Communicator& communicator, const std::string& name,
                          const std::function<StateDict()>& of_rank_0) {
  StateDict state;
  const auto headers = checkpoint::on_all_ranks(communicator, name, [&] {
    if (communicator.rank() != 0) return std::string();
    state = copy_to_cpu(of_rank_0());
    return json{{"values", checkpoint::to_json(state)}, {"tensors", tensors_of(state)}}.dump();
  });
  if (communicator.rank() != 0) state = with_empty_tensors(json::parse(headers.front()));
  for (const auto& [key, value] : state.values()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value))
      communicator.broadcast(*tensor, 0, comm::internal_call(name)).wait();
  }
  return state;
}

}  // namespace tutti
