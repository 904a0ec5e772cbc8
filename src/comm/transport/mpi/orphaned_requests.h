#pragma once
// What groups over MPI leave behind, and how MPI ends.
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/transport/mpi/mpi_api.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

/// A message and what keeps its memory.
struct MpiRequest {
  MpiMessage* message = nullptr;  // null once it was freed
  Buffer block;
  int peer = 0;
};
using MpiRequests = std::vector<std::shared_ptr<MpiRequest>>;

/// Frees the requests that MPI no longer uses.
void erase_idle(const MpiApi& api, MpiRequests& requests);

/// MPI is one for the process, and so is this. Thread safe.
class OrphanedRequests {
 public:
  static const std::shared_ptr<OrphanedRequests>& of_process();

  /// A group that this rank has left. `sent` and `received` are its close messages; a received byte of 1 says that the
  /// peer left nothing unfinished. Only when all say so may MPI use the group's number for another one.
  void add(const MpiApi& api, MpiGroup* group, MpiRequests sent, MpiRequests received);
  /// Messages that could not be cancelled: their memory stays until the process ends.
  void keep(MpiRequests unfinished);
  /// The number of these messages.
  std::size_t kept();
  /// A group was closed with operations in flight.
  void note_failure() { failed_ = true; }
  bool failed() const { return failed_; }
  /// Of the groups that this rank has left: those whose numbers MPI has not got back.
  std::size_t unreleased_groups();

 private:
  struct ClosingGroup {
    MpiGroup* group = nullptr;
    MpiRequests sent;
    MpiRequests received;
    bool in_order = true;  // false after a close message of a rank that did not leave in good order
  };

  std::mutex mutex_;
  std::vector<ClosingGroup> closing_groups_;
  std::size_t unreleased_ = 0;
  MpiRequests orphans_;
  std::atomic<bool> failed_ = false;
};

/// Lets MPI end with the process, for the one who has initialised it.
void finalize_mpi_at_exit();

}  // namespace tutti::comm
