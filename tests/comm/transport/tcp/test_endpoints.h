#pragma once
// Endpoints of ranks in one process, which know each other's addresses.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport/tcp/endpoint.h"

namespace tutti::test {

class TestEndpoints {
 public:
  explicit TestEndpoints(int size) {
    for (int rank = 0; rank < size; ++rank) {
      addresses_.push_back(sockets_.emplace_back(comm::MessageSocket::listen("127.0.0.1")).to_text());
    }
  }
  const std::string& address_of(int rank) const { return addresses_.at(static_cast<std::size_t>(rank)); }
  /// For the endpoints that are made later.
  void set_address(int rank, const std::string& address) { addresses_.at(static_cast<std::size_t>(rank)) = address; }
  /// Of endpoints that are made later.
  std::chrono::milliseconds acknowledgement_timeout{0};
  /// Once for each rank.
  std::unique_ptr<comm::Endpoint> make(int rank, JobSecretPtr secret = nullptr, bool encrypts = false) {
    return std::make_unique<comm::Endpoint>(std::move(sockets_.at(static_cast<std::size_t>(rank))), addresses_,
                                            comm::EndpointOptions{.rank = rank,
                                                                  .secret = std::move(secret),
                                                                  .encrypts = encrypts,
                                                                  .acknowledgement_timeout = acknowledgement_timeout});
  }

 private:
  std::vector<comm::MessageSocket> sockets_;
  std::vector<std::string> addresses_;
};

}  // namespace tutti::test
