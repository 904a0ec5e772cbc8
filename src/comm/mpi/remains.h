#pragma once
// What groups over MPI leave behind, and how MPI ends.
#include <memory>
#include <mutex>
#include <vector>

#include "comm/messages/transport.h"
#include "comm/mpi/functions.h"

namespace tutti::comm {

/// A message and what keeps its memory.
struct MpiMail {
  MpiMessage* message = nullptr;  // null once it was freed
  Block block;
  int peer = 0;
};
using MpiMails = std::vector<std::shared_ptr<MpiMail>>;

/// Frees what MPI has let go of.
void erase_idle(const MpiFunctions& functions, MpiMails& mails);

/// MPI is one for the process, and so is this. Thread safe.
class MpiRemains {
 public:
  static const std::shared_ptr<MpiRemains>& of_process();

  /// A group that this rank has left. `sent` and `received` are its goodbyes; a received byte of 1 says that the peer
  /// left nothing unfinished. Only when all say so may MPI use the group's number for another one.
  void add(const MpiFunctions& functions, MpiGroup* group, MpiMails sent, MpiMails received);
  /// Messages that could not be cancelled: their memory stays until the process ends.
  void keep(MpiMails unfinished);
  /// Some group was left with operations under way.
  void note_failure();
  bool failed();
  /// Of the groups that this rank has left: those whose numbers MPI has not got back.
  std::size_t groups_kept();

 private:
  struct Parting {
    MpiGroup* group = nullptr;
    MpiMails sent;
    MpiMails received;
    MpiMails heard;
  };

  std::mutex mutex_;
  std::vector<Parting> partings_;
  std::size_t never_freed_ = 0;
  MpiMails kept_;
  bool failed_ = false;
};

/// Lets MPI end with the process, for the one who has initialised it.
void end_mpi_at_exit();

}  // namespace tutti::comm
