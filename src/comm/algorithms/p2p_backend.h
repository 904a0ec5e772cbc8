#pragma once
// All collectives over point-to-point messages, with the same algorithms for every transport.
#include "comm/algorithms/buffer_pool.h"
#include "comm/backend/backend.h"
#include "comm/reduction/reduce_tree.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

class P2pBackend final : public Backend {
 public:
  P2pBackend(std::shared_ptr<Transport> transport, Topology topology);

  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec) override;
  std::unique_ptr<PendingAllGather> start_small_all_gather(const Operation& operation,
                                                           std::span<const std::byte> input) override;

  void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) override;
  void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override;
  void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op) override;
  void broadcast(const Operation& operation, const at::Tensor& tensor, int root) override;
  void all_to_all_v(const Operation& operation, const std::vector<at::Tensor>& outputs,
                    const std::vector<at::Tensor>& inputs, std::size_t longest) override;
  bool peer_exited(int rank) const override { return transport_->peer_exited(rank); }
  void throw_if_peers_failed() const override { transport_->throw_if_peers_failed(); }

  std::vector<std::byte> bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input) override;
  at::Tensor allocate(const Operation& operation, std::int64_t bytes, at::Device device) override;
  std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                 std::chrono::milliseconds timeout) override;
  std::shared_ptr<FailureBoard> failure_board() override { return transport_->failure_board(); }
  void close() noexcept override { transport_->close(); }

 private:
  std::unique_ptr<PendingAllReduce> make_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                    const Reduction& reduction,
                                                    const std::shared_ptr<const WireCodec>& codec);
  // Receives the buffer output_for(r) from rank r, and sends input_for(r) to it. Empty buffers are not sent.
  template <typename OutputFor, typename InputFor>
  void exchange_parts(const Operation& operation, const OutputFor& output_for, const InputFor& input_for);

  std::shared_ptr<Transport> transport_;
  BufferPool buffer_pool_;
};

}  // namespace tutti::comm
