#include "comm/transport/gloo/peer_auth.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr char challenge_end = '.';

std::string to_hex(const Challenge& challenge) {
  std::string text;
  for (const std::byte byte : challenge) {
    std::array<char, 3> two{};
    std::snprintf(two.data(), two.size(), "%02x", std::to_integer<unsigned int>(byte));
    text += two.data();
  }
  return text;
}

}  // namespace

PeerAuth::PeerAuth(JobSecretPtr secret, int rank)
    : secret_(std::move(secret)), rank_(rank), challenge_(secret_ ? to_hex(random_challenge()) : "") {}

std::string PeerAuth::attach_challenge(const std::string& text) const {
  return challenge_ + challenge_end + text;
}

std::vector<std::string> PeerAuth::detach_challenges(const std::vector<std::string>& all,
                                                     const std::vector<int>& ranks) {
  challenges_.insert_or_assign(rank_, challenge_);
  std::vector<std::string> texts;
  for (const auto& text : all) {
    const int rank = ranks.at(texts.size());
    const auto end = std::min(text.find(challenge_end), text.size());
    if (end != challenge_.size()) {
      const std::string with = end > challenge_.size() ? "with" : "without";
      throw UsageError("rank " + std::to_string(rank) + " was started " + with + " a secret for the job, unlike rank " +
                       std::to_string(rank_) + ": give all ranks the same.");
    }
    challenges_.insert_or_assign(rank, text.substr(0, end));
    texts.push_back(text.substr(std::min(end + 1, text.size())));
  }
  return texts;
}

std::vector<std::byte> PeerAuth::proof_for(int peer) const {
  const auto digest = proof(rank_, peer);
  return {digest.begin(), digest.end()};
}

bool PeerAuth::verify(int peer, std::span<const std::byte> proof_bytes) const {
  if (proof_bytes.size() != proof_size) return false;
  Digest received;
  std::ranges::copy(proof_bytes, received.begin());
  return constant_time_equal(received, proof(peer, rank_));
}

// All parts have lengths that are known beforehand.
Digest PeerAuth::proof(int from, int to) const {
  constexpr std::string_view subject = "tutti: peer auth";
  const std::array<std::int32_t, 2> pair{from, to};
  const auto challenge = [&](int rank) { return std::as_bytes(std::span(challenges_.at(rank))); };
  return hmac_sha256(
      *secret_, {std::as_bytes(std::span(subject)), std::as_bytes(std::span(pair)), challenge(from), challenge(to)});
}

}  // namespace tutti::comm
