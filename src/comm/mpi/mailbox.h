#pragma once
// The messages of one group of ranks over MPI, which itself knows no peers that leave.
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "comm/messages/transport.h"
#include "comm/mpi/functions.h"
#include "comm/mpi/remains.h"
#include "comm/mpi/tags.h"

namespace tutti::comm {

/// Thread safe.
class MpiMailbox {
 public:
  /// Takes `group` over.
  MpiMailbox(const MpiFunctions& functions, MpiGroup* group, MpiTags tags, int rank, int size);
  ~MpiMailbox();
  MpiMailbox(const MpiMailbox&) = delete;
  MpiMailbox& operator=(const MpiMailbox&) = delete;

  /// Both throw TransferError where the message cannot arrive.
  std::shared_ptr<MpiMail> post(bool send, int peer, Tag tag, const Block& block);
  bool has_ended(const std::shared_ptr<MpiMail>& mail);

  /// Tells the others that this rank leaves, and ends its messages here. The memory of those that MPI does not let go
  /// stays alive until the process ends.
  void close() noexcept;

 private:
  struct Peer {
    std::shared_ptr<MpiMail> goodbye;
    std::optional<Deadline> last_chance{};  // for what it sent before it left
  };

  std::shared_ptr<MpiMail> start(bool send, int peer, int tag, const Block& block);
  bool has_left(Peer& peer);
  void end_messages();
  void say_goodbye(bool in_order);

  const MpiFunctions& functions_;
  const std::shared_ptr<MpiRemains> remains_ = MpiRemains::of_process();
  MpiGroup* group_;
  MpiTags tags_;
  int rank_;

  std::mutex mutex_;
  bool closed_ = false;
  std::unordered_set<std::shared_ptr<MpiMail>> under_way_;  // whether or not somebody waits for them
  std::vector<Peer> peers_;
};

}  // namespace tutti::comm
