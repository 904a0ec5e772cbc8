#pragma once
// A connection to the job's store that disconnects while idle. After the rendezvous, ranks of one machine seldom use
// the store, and each connection costs its server a descriptor.
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/file_descriptor.h"

namespace tutti::comm {

/// Thread safe, like the connections that it makes.
class ReconnectingStore final : public c10d::Store {
 public:
  using Connect = std::function<c10::intrusive_ptr<c10d::Store>()>;

  /// Begins with the connection `first`; `connect` makes the later ones. What it throws, requests throw.
  ReconnectingStore(c10::intrusive_ptr<c10d::Store> first, Connect connect);
  /// Begins without a connection.
  ReconnectingStore(const ReconnectingStore& other);
  ReconnectingStore& operator=(const ReconnectingStore&) = delete;

  /// Closes the connection if there was no request for `idle`, after the requests in flight. The next request connects
  /// again, also if this process has used up its descriptors meanwhile.
  void disconnect_if_idle(std::chrono::milliseconds idle);

  c10::intrusive_ptr<c10d::Store> clone() override;

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override { return has_extended_api_; }

 private:
  /// The connection, made now where there is none. A request keeps what it was given.
  c10::intrusive_ptr<c10d::Store> ensure_connected();

  Connect connect_;
  bool has_extended_api_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> connection_;       // null where there is none
  std::chrono::steady_clock::time_point last_used_;  // when a request came last
  FileDescriptor reserved_descriptor_;               // for the next connection
};

}  // namespace tutti::comm
