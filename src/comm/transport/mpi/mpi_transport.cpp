#include "comm/transport/mpi/mpi_transport.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "comm/backend/current_operation.h"
#include "comm/backend/slow_operation_warning.h"
#include "comm/os/cpu_pause.h"
#include "comm/transport/mpi/mpi_endpoint.h"
#include "comm/transport/mpi/mpi_environment.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr int polls_before_sleep = 100;
constexpr auto longest_sleep = std::chrono::microseconds(500);

class MpiTransport final : public Transport, public std::enable_shared_from_this<MpiTransport> {
 public:
  /// Every rank of `health` must call it, with the same `name`.
  MpiTransport(Rendezvous rendezvous, GroupHealth health, int rank, const std::string& name, MpiTags tags)
      : Transport("mpi", rank, static_cast<int>(health.global_ranks().size())),
        rendezvous_(std::move(rendezvous)),
        health_(std::move(health)),
        tags_(tags) {
    const auto& api = mpi_api();
    MpiGroup* group = nullptr;
    if (const char* const error = api.make_group(health_.global_ranks().data(), size(), tags_.of_name(name), &group)) {
      throw PeerError(std::string("Connecting over MPI failed: ") + error, {});
    }
    endpoint_ = std::make_shared<MpiEndpoint>(api, group, tags_, rank, size());
  }
  ~MpiTransport() override { close(); }

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Buffer& block) override {
    return std::make_unique<MpiTransfer>(shared_from_this(), endpoint_->post(true, peer, tag, block));
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Buffer& block) override {
    return std::make_unique<MpiTransfer>(shared_from_this(), endpoint_->post(false, peer, tag, block));
  }

  std::shared_ptr<Transport> split(const std::vector<int>& members, const std::string& name,
                                   std::chrono::milliseconds timeout) override {
    auto rendezvous = rendezvous_of_group(rendezvous_, name, members);
    const auto rank = static_cast<int>(std::ranges::find(members, this->rank()) - members.begin());
    // Making a group has no deadline: all must be there before.
    (void)coordinator_all_gather(rendezvous, "mpi", rank, "", timeout);
    return std::make_shared<MpiTransport>(std::move(rendezvous), health_.for_group(members), rank, name, tags_);
  }

  bool peer_exited(int rank) const override { return health_.has_ended(rank) || endpoint_->has_closed(rank); }
  void throw_if_peers_failed() const override { health_.throw_if_peers_failed(); }
  std::shared_ptr<FailureBoard> failure_board() override { return make_coordinator_failure_board(rendezvous_); }
  void close() noexcept override { endpoint_->close(); }

 private:
  class MpiTransfer final : public Transfer {
   public:
    MpiTransfer(std::shared_ptr<MpiTransport> transport, std::shared_ptr<MpiRequest> request)
        : transport_(std::move(transport)), request_(std::move(request)) {}
    int peer() const override { return request_->peer; }
    void wait(Deadline deadline) override { transport_->wait(request_, deadline); }

   private:
    std::shared_ptr<MpiTransport> transport_;
    std::shared_ptr<MpiRequest> request_;
  };

  void wait(const std::shared_ptr<MpiRequest>& request, Deadline deadline) const {
    // MPI has no wait with a deadline. The polls become rarer, which leaves the core to other threads.
    std::chrono::microseconds sleep{10};
    SlowOperationWarning slow_warning(Clock::now());
    for (int polls = 0; !endpoint_->is_complete(request); ++polls) {
      health_.throw_if_peers_failed();
      const auto now = Clock::now();
      const int peer = request->peer;
      if (slow_warning.due(now)) log_slow_peer(health_.global_ranks(), rank(), peer, slow_warning.waited(now));
      if (now > deadline) throw TransferError(TransferError::Kind::timeout, {peer}, "timed out");
      if (polls < polls_before_sleep) {
        cpu_pause();
        continue;
      }
      std::this_thread::sleep_for(sleep);
      sleep = std::min(sleep * 2, longest_sleep);
    }
  }

  Rendezvous rendezvous_;
  GroupHealth health_;
  MpiTags tags_;
  std::shared_ptr<MpiEndpoint> endpoint_;
};

// Initialising MPI waits for all ranks without a timeout, so a failure on one rank must stop all of them.
void run_on_all_ranks(const Rendezvous& rendezvous, const std::string& topic, int rank,
                      std::chrono::milliseconds timeout, const std::function<void()>& step) {
  const std::string ok = "ok";
  std::string result = ok;
  try {
    step();
  } catch (const UsageError& error) {
    result = error.what();
  }
  const auto answers = coordinator_all_gather(rendezvous, topic, rank, result, timeout);
  for (std::size_t failed_rank = 0; failed_rank < answers.size(); ++failed_rank) {
    if (answers[failed_rank] == ok) continue;
    throw UsageError("The backend mpi cannot be used on rank " + std::to_string(failed_rank) + ": " +
                     answers[failed_rank] + ".");
  }
}

void require_same_rank(const MpiWorld& world_info, int rank, int size) {
  if (world_info.rank == rank && world_info.size == size) return;
  std::string text = "MPI counts this process as rank " + std::to_string(world_info.rank) + " of ";
  text += std::to_string(world_info.size) + ", the job as rank " + std::to_string(rank) + " of " + std::to_string(size);
  throw UsageError(text + ": start the program with the mpirun of this MPI (srun: --mpi=pmix or pmi2)");
}

}  // namespace

std::shared_ptr<Transport> connect_mpi(const Rendezvous& rendezvous, int rank, GroupHealth health,
                                       std::chrono::milliseconds timeout) {
  const auto size = static_cast<int>(health.global_ranks().size());
  run_on_all_ranks(rendezvous, "mpi/before", rank, timeout, [&] { require_mpi(size); });
  MpiWorld world_info;
  run_on_all_ranks(rendezvous, "mpi/after", rank, timeout, [&] {
    world_info = init_mpi();
    require_same_rank(world_info, rank, size);
  });
  return std::make_shared<MpiTransport>(rendezvous, std::move(health), rank, "job", MpiTags(world_info.highest_tag));
}

}  // namespace tutti::comm
