#include "comm/mpi/transport.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "comm/engine/pause.h"
#include "comm/mpi/job.h"
#include "comm/mpi/mailbox.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// MPI has no wait with a deadline: it is asked again and again, ever less often, so that the core is left to others.
class Backoff {
 public:
  void pause() {
    constexpr int looks_at_first = 100;
    constexpr auto longest = std::chrono::microseconds(500);
    if (++looks_ <= looks_at_first) {
      pause_briefly();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, longest);
  }

 private:
  int looks_ = 0;
  std::chrono::microseconds sleep_{10};
};

class MpiTransfer final : public Transfer {
 public:
  MpiTransfer(std::shared_ptr<MpiMailbox> mailbox, std::shared_ptr<MpiMail> mail, GroupPulse pulse)
      : mailbox_(std::move(mailbox)), mail_(std::move(mail)), pulse_(std::move(pulse)) {}

  int peer() const override { return mail_->peer; }

  void wait(Deadline deadline) override {
    for (Backoff backoff; !mailbox_->has_ended(mail_); backoff.pause()) {
      pulse_.throw_if_silent();
      if (Clock::now() > deadline) throw TransferError(TransferError::Kind::timeout, {peer()}, "timed out");
    }
  }

 private:
  std::shared_ptr<MpiMailbox> mailbox_;
  std::shared_ptr<MpiMail> mail_;
  GroupPulse pulse_;
};

class MpiTransport final : public Transport {
 public:
  /// Every rank of `pulse` must call it, with the same `name`.
  MpiTransport(Rendezvous rendezvous, GroupPulse pulse, int rank, const std::string& name, MpiTags tags)
      : rendezvous_(std::move(rendezvous)), pulse_(std::move(pulse)), rank_(rank), tags_(tags) {
    const auto& functions = mpi_functions();
    MpiGroup* group = nullptr;
    if (const char* const why = functions.make_group(pulse_.job_ranks().data(), size(), tags_.of_name(name), &group)) {
      throw PeerFailure(std::string("Connecting over MPI failed: ") + why, {});
    }
    mailbox_ = std::make_shared<MpiMailbox>(functions, group, tags_, rank_, size());
  }
  ~MpiTransport() override { close(); }

  const std::string& name() const override {
    static const std::string name = "mpi";
    return name;
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(pulse_.job_ranks().size()); }

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Block& block) override {
    return std::make_unique<MpiTransfer>(mailbox_, mailbox_->post(true, peer, tag, block), pulse_);
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Block& block) override {
    return std::make_unique<MpiTransfer>(mailbox_, mailbox_->post(false, peer, tag, block), pulse_);
  }

  std::shared_ptr<Transport> connect_again(const std::vector<int>& members, const std::string& name,
                                           std::chrono::milliseconds timeout) override {
    auto rendezvous = rendezvous_of_group(rendezvous_, name, members);
    const auto rank = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
    // Making a group has no deadline: all must be there before.
    (void)exchange(rendezvous, "mpi", rank, static_cast<int>(members.size()), "", timeout);
    return std::make_shared<MpiTransport>(std::move(rendezvous), pulse_.of(members), rank, name, tags_);
  }

  std::shared_ptr<Bulletin> bulletin() override { return make_store_bulletin(rendezvous_, size()); }
  void close() noexcept override { mailbox_->close(); }

 private:
  Rendezvous rendezvous_;
  GroupPulse pulse_;
  int rank_;
  MpiTags tags_;
  std::shared_ptr<MpiMailbox> mailbox_;
};

// Initialising MPI waits for all ranks, without a deadline: nobody goes on alone.
void agree(const Rendezvous& rendezvous, const std::string& topic, int rank, int size,
           std::chrono::milliseconds timeout, const std::function<void()>& step) {
  const std::string good = "good";
  std::string own = good;
  try {
    step();
  } catch (const UsageError& error) {
    own = error.what();
  }
  const auto answers = exchange(rendezvous, topic, rank, size, own, timeout);
  for (std::size_t other = 0; other < answers.size(); ++other) {
    if (answers[other] == good) continue;
    throw UsageError("The engine mpi cannot be used, says rank " + std::to_string(other) + ": " + answers[other] + ".");
  }
}

void require_same_place(const MpiPlace& place, int rank, int size) {
  if (place.rank == rank && place.size == size) return;
  std::string text = "MPI counts this process as rank " + std::to_string(place.rank) + " of ";
  text += std::to_string(place.size) + ", the job as rank " + std::to_string(rank) + " of " + std::to_string(size);
  throw UsageError(text + ": start the program with the mpirun of this MPI (srun: --mpi=pmix or pmi2)");
}

}  // namespace

std::shared_ptr<Transport> connect_mpi(const Rendezvous& rendezvous, int rank, GroupPulse pulse,
                                       std::chrono::milliseconds timeout) {
  const auto size = static_cast<int>(pulse.job_ranks().size());
  agree(rendezvous, "mpi/before", rank, size, timeout, [&] { require_mpi_job(size); });
  MpiPlace place;
  agree(rendezvous, "mpi/after", rank, size, timeout, [&] {
    place = join_mpi();
    require_same_place(place, rank, size);
  });
  return std::make_shared<MpiTransport>(rendezvous, std::move(pulse), rank, "job", MpiTags(place.highest_tag));
}

}  // namespace tutti::comm
