#pragma once
// What each rank says first to each other one over a new connection: where the job has a secret, a proof for that pair.
// The connections are Gloo's, which lets in whoever reaches it; nothing of ours follows before the first words are
// right. Pure.
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "comm/members/keyed_hash.h"

namespace tutti::comm {

class FirstWords {
 public:
  /// Without a secret they are a byte.
  FirstWords(JobSecretPtr secret, int rank);

  /// `text` with what the other ranks need to know beforehand, for the store; and back, from what all left there (by
  /// rank). Throws UsageError where some ranks have a secret and others none.
  std::string with_challenge(const std::string& text) const;
  std::vector<std::string> without_challenges(const std::vector<std::string>& all);

  /// Whether they tell members from others.
  bool are_a_proof() const { return secret_ != nullptr; }
  /// Bytes from each to each.
  std::size_t size() const;
  std::vector<std::byte> to(int peer) const;
  bool are_from(int peer, std::span<const std::byte> words) const;

 private:
  Digest proof(int from, int to) const;

  JobSecretPtr secret_;
  int rank_;
  std::string challenge_;                ///< of this rank, in letters; empty without a secret
  std::vector<std::string> challenges_;  ///< by rank
};

}  // namespace tutti::comm
