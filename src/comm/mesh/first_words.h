#pragma once
// What each rank says first to each other one over a new connection: where the job has a secret, a proof for that pair.
// The connections are Gloo's, which lets in whoever reaches it; nothing of ours follows before the first words are
// right. Pure.
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/members/keyed_hash.h"

namespace tutti::comm {

class FirstWords {
 public:
  /// `rank` as all others here: in the job. Without a secret there are none.
  FirstWords(JobSecretPtr secret, int rank);

  /// `text` with what the other ranks need to know beforehand, for the store; and back, from what `ranks` left there.
  /// Throws UsageError where some ranks have a secret and others none.
  std::string with_challenge(const std::string& text) const;
  std::vector<std::string> without_challenges(const std::vector<std::string>& all, const std::vector<int>& ranks);

  bool are_needed() const { return secret_ != nullptr; }
  /// In bytes.
  static constexpr std::size_t size = sizeof(Digest);
  /// Both take ranks whose challenge was heard.
  std::vector<std::byte> to(int peer) const;
  bool are_from(int peer, std::span<const std::byte> words) const;

 private:
  Digest proof(int from, int to) const;

  JobSecretPtr secret_;
  int rank_;
  std::string challenge_;                  ///< of this rank, in letters; empty without a secret
  std::map<int, std::string> challenges_;  ///< by rank
};

}  // namespace tutti::comm
