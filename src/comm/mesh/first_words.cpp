#include "comm/mesh/first_words.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr char end_of_challenge = '.';

std::string in_letters(const Challenge& challenge) {
  std::string text;
  for (const std::byte byte : challenge) {
    std::array<char, 3> two{};
    std::snprintf(two.data(), two.size(), "%02x", std::to_integer<unsigned int>(byte));
    text += two.data();
  }
  return text;
}

}  // namespace

FirstWords::FirstWords(JobSecretPtr secret, int rank)
    : secret_(std::move(secret)), rank_(rank), challenge_(secret_ ? in_letters(random_challenge()) : "") {}

std::string FirstWords::with_challenge(const std::string& text) const {
  return challenge_ + end_of_challenge + text;
}

std::vector<std::string> FirstWords::without_challenges(const std::vector<std::string>& all,
                                                        const std::vector<int>& ranks) {
  challenges_.insert_or_assign(rank_, challenge_);
  std::vector<std::string> texts;
  for (const auto& said : all) {
    const int rank = ranks.at(texts.size());
    const auto end = std::min(said.find(end_of_challenge), said.size());
    if (end != challenge_.size()) {
      const std::string with = end > challenge_.size() ? "with" : "without";
      throw UsageError("rank " + std::to_string(rank) + " was started " + with + " a secret for the job, unlike rank " +
                       std::to_string(rank_) + ": give all ranks the same.");
    }
    challenges_.insert_or_assign(rank, said.substr(0, end));
    texts.push_back(said.substr(std::min(end + 1, said.size())));
  }
  return texts;
}

std::vector<std::byte> FirstWords::to(int peer) const {
  const auto digest = proof(rank_, peer);
  return {digest.begin(), digest.end()};
}

bool FirstWords::are_from(int peer, std::span<const std::byte> words) const {
  if (words.size() != size) return false;
  Digest said;
  std::ranges::copy(words, said.begin());
  return is_same(said, proof(peer, rank_));
}

// All parts have lengths that are known beforehand.
Digest FirstWords::proof(int from, int to) const {
  constexpr std::string_view subject = "tutti: first words";
  const std::array<std::int32_t, 2> pair{from, to};
  const auto challenge = [&](int rank) { return std::as_bytes(std::span(challenges_.at(rank))); };
  return keyed_hash(
      *secret_, {std::as_bytes(std::span(subject)), std::as_bytes(std::span(pair)), challenge(from), challenge(to)});
}

}  // namespace tutti::comm
