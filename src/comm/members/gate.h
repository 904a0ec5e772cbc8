#pragma once
// A door before something that knows no password. At a gate strangers knock: who proves the job's secret is let
// through. A porter stands at the other end: what a rank's own process says to it, it says to a gate, after the proof.
//
// A thread of its own passes the bytes on.
#include <cstdint>
#include <memory>

#include "comm/members/passage.h"

namespace tutti::comm {

/// Closes all that it has let through when it is gone.
class Gate {
 public:
  struct Plan {
    FileDescriptor listening;  ///< does not block
    SocketAddress onward;
    Passage::Proof proof = Passage::Proof::asked;
    JobSecretPtr secret;
    std::string subject;  ///< of the proof
  };
  /// Throws std::system_error.
  explicit Gate(Plan plan);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// Where it passes on to.
  const SocketAddress& onward() const;

 private:
  class Keeper;
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace tutti::comm
