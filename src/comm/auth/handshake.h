#pragma once
// How two processes show each other that they know the job's secret, without telling it. Pure: bytes in, bytes out.
//
//   who is called    tells a challenge
//   who calls        tells a challenge of its own, and the keyed hash of both
//   who is called    says whether that was right, and tells another keyed hash of both
//
// Challenges are random, so that what was heard once is of no use again; the sides hash different words, so that
// nothing that a side says can be said back to it. All messages have one length each.
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "comm/auth/hmac.h"

namespace tutti::comm {

class Handshake {
 public:
  enum class Side { client, server };
  enum class Outcome {
    pending,          ///< not over
    authenticated,    ///< the other side knows the secret
    refused,          ///< the other side says that this one does not
    unauthenticated,  ///< the other side does not know it, or speaks another language
  };

  /// `subject` is what the connection is for: a proof for one subject is none for another.
  Handshake(Side side, JobSecretPtr secret, std::string subject);

  /// What is to be written next; empty where it is the other side's turn.
  std::span<const std::byte> to_send() const;
  void sent(std::size_t count);
  /// Where the next bytes belong. Never longer than what may come.
  std::span<std::byte> to_receive();
  void received(std::size_t count);
  /// Not `pending` only when all is sent.
  Outcome outcome() const;

 private:
  enum class Step { hello, response, result, done };
  void send_next(std::vector<std::byte> message);
  void receive_next(Step step);
  void read_hello();
  void read_response();
  void read_result();
  Digest proof_of(Side side) const;

  Side side_;
  JobSecretPtr secret_;
  std::string subject_;
  Challenge client_challenge_{};
  Challenge server_challenge_{};
  Outcome outcome_ = Outcome::pending;
  std::vector<std::byte> outgoing_;
  std::size_t sent_ = 0;
  Step expected_ = Step::done;
  std::vector<std::byte> incoming_;
  std::size_t received_ = 0;
};

/// How a greeting begins: who has no secret learns by it that one is asked for.
std::span<const std::byte> protocol_magic();

}  // namespace tutti::comm
