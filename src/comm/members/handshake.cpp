#include "comm/members/handshake.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tutti::comm {
namespace {

// With the version of this conversation.
constexpr std::string_view mark = "tutti: prove 1\r\n";
constexpr std::string_view welcome = "welcome!";
constexpr std::string_view refusal = "refused!";
static_assert(welcome.size() == refusal.size());

constexpr std::size_t greeting_bytes = mark.size() + sizeof(Challenge);
constexpr std::size_t answer_bytes = sizeof(Challenge) + sizeof(Digest);
constexpr std::size_t verdict_bytes = welcome.size() + sizeof(Digest);

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::vector<std::byte> joined(std::span<const std::byte> first, std::span<const std::byte> second) {
  std::vector<std::byte> all(first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

bool begins_with(std::span<const std::byte> message, std::string_view text) {
  return std::ranges::equal(message.first(text.size()), bytes_of(text));
}

/// The part of `message` behind its first bytes, which `to` takes as a whole.
template <typename T>
void take_rest(std::span<const std::byte> message, std::size_t first, T& to) {
  std::ranges::copy(message.subspan(first, to.size()), to.begin());
}

}  // namespace

std::span<const std::byte> greeting_mark() {
  return bytes_of(mark);
}

Handshake::Handshake(Side side, JobSecretPtr secret, std::string subject)
    : side_(side), secret_(std::move(secret)), subject_(std::move(subject)) {
  if (side_ == Side::calls) {
    callers_ = random_challenge();
    receive_next(Step::greeting);
  } else {
    called_ = random_challenge();
    outgoing_ = joined(bytes_of(mark), called_);
    receive_next(Step::answer);
  }
}

std::span<const std::byte> Handshake::to_send() const {
  return std::span(outgoing_).subspan(sent_);
}

void Handshake::sent(std::size_t count) {
  sent_ += count;
}

std::span<std::byte> Handshake::to_receive() {
  // Before its own turn is over, nobody has a reason to speak.
  if (!to_send().empty()) return {};
  return std::span(incoming_).subspan(received_);
}

void Handshake::received(std::size_t count) {
  received_ += count;
  heard_ = heard_ || count > 0;
  if (received_ < incoming_.size()) return;
  switch (awaited_) {
    case Step::greeting:
      return read_greeting();
    case Step::answer:
      return read_answer();
    case Step::verdict:
      return read_verdict();
    case Step::over:
      return;
  }
}

Handshake::Outcome Handshake::outcome() const {
  return to_send().empty() ? outcome_ : Outcome::open;
}

void Handshake::send_next(std::vector<std::byte> message) {
  outgoing_ = std::move(message);
  sent_ = 0;
}

void Handshake::receive_next(Step step) {
  awaited_ = step;
  received_ = 0;
  const auto size = [&]() -> std::size_t {
    switch (step) {
      case Step::greeting:
        return greeting_bytes;
      case Step::answer:
        return answer_bytes;
      case Step::verdict:
        return verdict_bytes;
      case Step::over:
        return 0;
    }
    return 0;
  };
  incoming_.assign(size(), std::byte{});
}

void Handshake::read_greeting() {
  if (!begins_with(incoming_, mark)) {
    outcome_ = Outcome::unproven;
    return receive_next(Step::over);
  }
  take_rest(incoming_, mark.size(), called_);
  send_next(joined(callers_, proof_of(Side::calls)));
  receive_next(Step::verdict);
}

void Handshake::read_answer() {
  Digest proof;
  std::ranges::copy(std::span(incoming_).first(callers_.size()), callers_.begin());
  take_rest(incoming_, callers_.size(), proof);
  const bool right = is_same(proof, proof_of(Side::calls));
  outcome_ = right ? Outcome::proven : Outcome::unproven;
  // Who does not know the secret is given nothing to guess at.
  send_next(right ? joined(bytes_of(welcome), proof_of(Side::is_called)) : joined(bytes_of(refusal), Digest{}));
  receive_next(Step::over);
}

void Handshake::read_verdict() {
  Digest proof;
  take_rest(incoming_, welcome.size(), proof);
  if (begins_with(incoming_, refusal)) {
    outcome_ = Outcome::refused;
  } else {
    const bool right = begins_with(incoming_, welcome) && is_same(proof, proof_of(Side::is_called));
    outcome_ = right ? Outcome::proven : Outcome::unproven;
  }
  receive_next(Step::over);
}

Digest Handshake::proof_of(Side side) const {
  // One length for both words; the subject, whose length varies, stands last.
  constexpr std::string_view caller = "tutti: who calls.....";
  constexpr std::string_view called = "tutti: who is called.";
  static_assert(caller.size() == called.size());
  return keyed_hash(*secret_, {bytes_of(side == Side::calls ? caller : called), called_, callers_, bytes_of(subject_)});
}

}  // namespace tutti::comm
