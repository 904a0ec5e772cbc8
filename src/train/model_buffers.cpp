#include "train/model_buffers.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "sync/replicate.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {

void synchronize_buffers(const std::vector<at::Tensor>& buffers, BufferSync how, const Communicator& communicator) {
  if (how == BufferSync::none || communicator.size() == 1) return;
  if (how == BufferSync::broadcast) return sync::replicate(buffers, communicator);

  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> of_rank_0;
  std::vector<at::Tensor> averaged;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& buffer : buffers) {
    if (!buffer.is_floating_point()) {
      of_rank_0.push_back(buffer);
      continue;
    }
    averaged.push_back(buffer);
    // One message in fp64 for all dtypes, because buffers are small.
    flat.push_back(buffer.reshape({-1}).cpu().to(at::kDouble));
  }
  sync::replicate(of_rank_0, communicator);
  if (averaged.empty()) return;
  const at::Tensor message = at::cat(flat);
  communicator.all_reduce(message, ReduceOp::mean, comm::internal_call("buffers")).wait();
  std::int64_t begin = 0;
  for (at::Tensor& buffer : averaged) {
    buffer.copy_(message.slice(0, begin, begin + buffer.numel()).view(buffer.sizes()));
    begin += buffer.numel();
  }
}

}  // namespace tutti
