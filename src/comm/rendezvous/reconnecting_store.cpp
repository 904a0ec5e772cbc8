#include "comm/rendezvous/reconnecting_store.h"

#include <fcntl.h>

#include <utility>

namespace tutti::comm {

ReconnectingStore::ReconnectingStore(c10::intrusive_ptr<c10d::Store> first, Connect connect)
    : Store(first->getTimeout()),
      connect_(std::move(connect)),
      has_extended_api_(first->hasExtendedApi()),
      connection_(std::move(first)) {}

ReconnectingStore::ReconnectingStore(const ReconnectingStore& other)
    : Store(other.timeout_), connect_(other.connect_), has_extended_api_(other.has_extended_api_) {}

c10::intrusive_ptr<c10d::Store> ReconnectingStore::ensure_connected() {
  const std::lock_guard lock(mutex_);
  if (!connection_) {
    reserved_descriptor_ = FileDescriptor();
    connection_ = connect_();
    connection_->setTimeout(timeout_);
  }
  last_used_ = std::chrono::steady_clock::now();
  return connection_;
}

void ReconnectingStore::disconnect_if_idle(std::chrono::milliseconds idle) {
  const std::lock_guard lock(mutex_);
  if (!connection_ || std::chrono::steady_clock::now() - last_used_ < idle) return;
  connection_.reset();
  reserved_descriptor_ = FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

c10::intrusive_ptr<c10d::Store> ReconnectingStore::clone() {
  return c10::make_intrusive<ReconnectingStore>(*this);
}

void ReconnectingStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  ensure_connected()->set(key, value);
}

std::vector<std::uint8_t> ReconnectingStore::compareSet(const std::string& key,
                                                        const std::vector<std::uint8_t>& expected,
                                                        const std::vector<std::uint8_t>& desired) {
  return ensure_connected()->compareSet(key, expected, desired);
}

std::vector<std::uint8_t> ReconnectingStore::get(const std::string& key) {
  return ensure_connected()->get(key);
}

std::int64_t ReconnectingStore::add(const std::string& key, std::int64_t value) {
  return ensure_connected()->add(key, value);
}

bool ReconnectingStore::deleteKey(const std::string& key) {
  return ensure_connected()->deleteKey(key);
}

bool ReconnectingStore::check(const std::vector<std::string>& keys) {
  return ensure_connected()->check(keys);
}

std::int64_t ReconnectingStore::getNumKeys() {
  return ensure_connected()->getNumKeys();
}

void ReconnectingStore::wait(const std::vector<std::string>& keys) {
  ensure_connected()->wait(keys);
}

void ReconnectingStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  ensure_connected()->wait(keys, timeout);
}

void ReconnectingStore::setTimeout(const std::chrono::milliseconds& timeout) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
  if (connection_) connection_->setTimeout(timeout);
}

void ReconnectingStore::append(const std::string& key, const std::vector<std::uint8_t>& value) {
  ensure_connected()->append(key, value);
}

std::vector<std::vector<std::uint8_t>> ReconnectingStore::multiGet(const std::vector<std::string>& keys) {
  return ensure_connected()->multiGet(keys);
}

void ReconnectingStore::multiSet(const std::vector<std::string>& keys,
                                 const std::vector<std::vector<std::uint8_t>>& values) {
  ensure_connected()->multiSet(keys, values);
}

}  // namespace tutti::comm
