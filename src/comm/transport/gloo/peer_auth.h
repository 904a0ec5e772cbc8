#pragma once
// The first message between two ranks on a new connection of a job with a secret: a proof for that pair of ranks. Gloo
// accepts every client that reaches it; no other message follows before the proof has been verified. No I/O.
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/auth/hmac.h"

namespace tutti::comm {

class PeerAuth {
 public:
  /// `rank` as all others here: in the job. Without a secret there are none.
  PeerAuth(JobSecretPtr secret, int rank);

  /// `text` with what the other ranks need to know beforehand, for the store; and back, from what `ranks` left there.
  /// Throws UsageError where some ranks have a secret and others none.
  std::string attach_challenge(const std::string& text) const;
  std::vector<std::string> detach_challenges(const std::vector<std::string>& all, const std::vector<int>& ranks);

  bool is_required() const { return secret_ != nullptr; }
  /// In bytes.
  static constexpr std::size_t proof_size = sizeof(Digest);
  /// Both take ranks whose challenge was heard.
  std::vector<std::byte> proof_for(int peer) const;
  bool verify(int peer, std::span<const std::byte> proof_bytes) const;

 private:
  Digest proof(int from, int to) const;

  JobSecretPtr secret_;
  int rank_;
  std::string challenge_;                  ///< of this rank, as text; empty without a secret
  std::map<int, std::string> challenges_;  ///< by rank
};

}  // namespace tutti::comm
