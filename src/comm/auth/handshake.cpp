#include "comm/auth/handshake.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tutti::comm {
namespace {

// With the version of this conversation.
constexpr std::string_view magic = "tutti: prove 1\r\n";
constexpr std::string_view accepted_reply = "accepted";
constexpr std::string_view refused_reply = "refused!";
static_assert(accepted_reply.size() == refused_reply.size());

constexpr std::size_t hello_bytes = magic.size() + sizeof(Challenge);
constexpr std::size_t response_bytes = sizeof(Challenge) + sizeof(Digest);
constexpr std::size_t result_bytes = accepted_reply.size() + sizeof(Digest);

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::vector<std::byte> concatenate(std::span<const std::byte> first, std::span<const std::byte> second) {
  std::vector<std::byte> all(first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

bool begins_with(std::span<const std::byte> message, std::string_view text) {
  return std::ranges::equal(message.first(text.size()), bytes_of(text));
}

/// The part of `message` behind its first bytes, which `to` takes as a whole.
template <typename T>
void copy_rest(std::span<const std::byte> message, std::size_t first, T& to) {
  std::ranges::copy(message.subspan(first, to.size()), to.begin());
}

}  // namespace

std::span<const std::byte> protocol_magic() {
  return bytes_of(magic);
}

Handshake::Handshake(Side side, JobSecretPtr secret, std::string subject)
    : side_(side), secret_(std::move(secret)), subject_(std::move(subject)) {
  if (side_ == Side::client) {
    client_challenge_ = random_challenge();
    receive_next(Step::hello);
  } else {
    server_challenge_ = random_challenge();
    outgoing_ = concatenate(bytes_of(magic), server_challenge_);
    receive_next(Step::response);
  }
}

std::span<const std::byte> Handshake::to_send() const {
  return std::span(outgoing_).subspan(sent_);
}

void Handshake::sent(std::size_t count) {
  sent_ += count;
}

std::span<std::byte> Handshake::to_receive() {
  // A side may send only when it is its turn.
  if (!to_send().empty()) return {};
  return std::span(incoming_).subspan(received_);
}

void Handshake::received(std::size_t count) {
  received_ += count;
  if (received_ < incoming_.size()) return;
  switch (expected_) {
    case Step::hello:
      return read_hello();
    case Step::response:
      return read_response();
    case Step::result:
      return read_result();
    case Step::done:
      return;
  }
}

Handshake::Outcome Handshake::outcome() const {
  return to_send().empty() ? outcome_ : Outcome::pending;
}

void Handshake::send_next(std::vector<std::byte> message) {
  outgoing_ = std::move(message);
  sent_ = 0;
}

void Handshake::receive_next(Step step) {
  expected_ = step;
  received_ = 0;
  const auto size = [&]() -> std::size_t {
    switch (step) {
      case Step::hello:
        return hello_bytes;
      case Step::response:
        return response_bytes;
      case Step::result:
        return result_bytes;
      case Step::done:
        return 0;
    }
    return 0;
  };
  incoming_.assign(size(), std::byte{});
}

void Handshake::read_hello() {
  if (!begins_with(incoming_, magic)) {
    outcome_ = Outcome::unauthenticated;
    return receive_next(Step::done);
  }
  copy_rest(incoming_, magic.size(), server_challenge_);
  send_next(concatenate(client_challenge_, proof_of(Side::client)));
  receive_next(Step::result);
}

void Handshake::read_response() {
  Digest proof;
  std::ranges::copy(std::span(incoming_).first(client_challenge_.size()), client_challenge_.begin());
  copy_rest(incoming_, client_challenge_.size(), proof);
  const bool valid = constant_time_equal(proof, proof_of(Side::client));
  outcome_ = valid ? Outcome::authenticated : Outcome::unauthenticated;
  // Who does not know the secret is given nothing to guess at.
  send_next(valid ? concatenate(bytes_of(accepted_reply), proof_of(Side::server))
                  : concatenate(bytes_of(refused_reply), Digest{}));
  receive_next(Step::done);
}

void Handshake::read_result() {
  Digest proof;
  copy_rest(incoming_, accepted_reply.size(), proof);
  if (begins_with(incoming_, refused_reply)) {
    outcome_ = Outcome::refused;
  } else {
    const bool valid = begins_with(incoming_, accepted_reply) && constant_time_equal(proof, proof_of(Side::server));
    outcome_ = valid ? Outcome::authenticated : Outcome::unauthenticated;
  }
  receive_next(Step::done);
}

Digest Handshake::proof_of(Side side) const {
  // One length for both words; the subject, whose length varies, stands last.
  constexpr std::string_view client_label = "tutti: client";
  constexpr std::string_view server_label = "tutti: server";
  static_assert(client_label.size() == server_label.size());
  return hmac_sha256(*secret_, {bytes_of(side == Side::client ? client_label : server_label), server_challenge_,
                                client_challenge_, bytes_of(subject_)});
}

}  // namespace tutti::comm
