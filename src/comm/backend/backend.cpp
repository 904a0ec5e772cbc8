#include "comm/backend/backend.h"

#include <cstddef>

#include "comm/backend/current_operation.h"
#include "comm/backend/topology.h"

namespace tutti::comm {

void Backend::all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) {
  const auto parts = [&](const at::Tensor& whole) { return whole.view({-1}).tensor_split(size()); };
  all_to_all_v(operation, parts(output), parts(input), output.nbytes() / static_cast<std::size_t>(size()));
}

void Backend::connect(std::chrono::milliseconds timeout) {
  const Operation operation{.op_name = "connect", .name = "", .timeout = timeout};
  const CurrentOperation here(operation);
  const std::byte connected{1};
  (void)start_small_all_gather(operation, std::span(&connected, 1))->wait();
}

std::vector<std::byte> Backend::bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input) {
  const auto exchange = start_small_all_gather(operation, input);
  const auto all = exchange->wait();
  return {all.begin(), all.end()};
}

std::shared_ptr<Backend> Backend::duplicate(const std::string& name, std::chrono::milliseconds timeout) {
  return split(all_ranks(size()), name, timeout);
}

}  // namespace tutti::comm
