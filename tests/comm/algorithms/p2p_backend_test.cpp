// Ranks: 2 to 4 as threads. How many messages the calls of a program take.
#include "comm/algorithms/p2p_backend.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "comm/backend/topology.h"
#include "comm/make_communicator.h"
#include "support/tcp_transports.h"
#include "tutti/core/error.h"

namespace tutti::test::p2p_backend_test {
namespace {

using namespace tutti::comm;

/// Counts the messages that a rank sends.
class CountingTransport final : public Transport {
 public:
  explicit CountingTransport(std::shared_ptr<Transport> inner)
      : Transport(inner->name(), inner->rank(), inner->size()), inner_(std::move(inner)) {}

  std::unique_ptr<Transfer> post_send(int peer, Tag tag, const Buffer& buffer) override {
    ++sent_;
    return inner_->post_send(peer, tag, buffer);
  }
  std::unique_ptr<Transfer> post_receive(int peer, Tag tag, const Buffer& buffer) override {
    return inner_->post_receive(peer, tag, buffer);
  }
  std::shared_ptr<Transport> split(const std::vector<int>& members, const std::string& name,
                                   std::chrono::milliseconds timeout) override {
    return inner_->split(members, name, timeout);
  }
  std::shared_ptr<FailureBoard> failure_board() override { return inner_->failure_board(); }
  void close() noexcept override { inner_->close(); }

  int take_sent() { return sent_.exchange(0); }

 private:
  std::shared_ptr<Transport> inner_;
  std::atomic<int> sent_ = 0;
};

void run_ranks(int size, const std::function<void(const Communicator&, CountingTransport&)>& body) {
  auto transports = make_tcp_transports(size);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto transport = std::make_shared<CountingTransport>(transports[static_cast<std::size_t>(rank)]);
      auto topology = make_topology(std::vector<int>(static_cast<std::size_t>(size)), rank);
      const auto backend = std::make_shared<P2pBackend>(transport, std::move(topology));
      body(make_communicator(backend, {.timeout = std::chrono::seconds(20)}, "job", {}), *transport);
    });
  }
}

int messages_of_a_sum(const Communicator& communicator, CountingTransport& transport, std::int64_t elements) {
  (void)transport.take_sent();
  const at::Tensor tensor = at::full({elements}, communicator.rank() + 1.0);
  communicator.all_reduce(tensor).wait();
  const int size = communicator.size();
  EXPECT_TRUE(at::equal(tensor, at::full({elements}, size * (size + 1) / 2.0)));
  return transport.take_sent();
}

TEST(P2pBackend, ACallOfOneKibibyteIsOneMessageToEachRank) {
  for (const int size : {2, 3, 4}) {
    run_ranks(size, [&](const Communicator& communicator, CountingTransport& transport) {
      EXPECT_EQ(messages_of_a_sum(communicator, transport, 1), size - 1);
      EXPECT_EQ(messages_of_a_sum(communicator, transport, 256), size - 1);
      EXPECT_EQ(messages_of_a_sum(communicator, transport, 257), 3 * (size - 1)) << "signatures, parts, results";
    });
  }
}

TEST(P2pBackend, CallsWithAndWithoutAPayloadThatDisagreeAreNamedOnAllRanks) {
  run_ranks(2, [&](const Communicator& communicator, CountingTransport&) {
    const at::Tensor tensor = at::ones({communicator.rank() == 0 ? 4 : 100'000});
    EXPECT_THROW(communicator.all_reduce(tensor).wait(), MismatchError);
  });
}

}  // namespace
}  // namespace tutti::test::p2p_backend_test
