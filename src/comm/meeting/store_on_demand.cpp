#include "comm/meeting/store_on_demand.h"

#include <fcntl.h>

#include <utility>

namespace tutti::comm {

StoreOnDemand::StoreOnDemand(c10::intrusive_ptr<c10d::Store> first, Connect again)
    : Store(first->getTimeout()),
      again_(std::move(again)),
      extended_(first->hasExtendedApi()),
      connection_(std::move(first)) {}

StoreOnDemand::StoreOnDemand(const StoreOnDemand& other)
    : Store(other.timeout_), again_(other.again_), extended_(other.extended_) {}

c10::intrusive_ptr<c10d::Store> StoreOnDemand::connected() {
  const std::lock_guard lock(mutex_);
  if (!connection_) {
    kept_free_ = FileDescriptor();
    connection_ = again_();
    connection_->setTimeout(timeout_);
  }
  used_ = std::chrono::steady_clock::now();
  return connection_;
}

void StoreOnDemand::hang_up(std::chrono::milliseconds idle) {
  const std::lock_guard lock(mutex_);
  if (!connection_ || std::chrono::steady_clock::now() - used_ < idle) return;
  connection_.reset();
  kept_free_ = FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

c10::intrusive_ptr<c10d::Store> StoreOnDemand::clone() {
  return c10::make_intrusive<StoreOnDemand>(*this);
}

void StoreOnDemand::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  connected()->set(key, value);
}

std::vector<std::uint8_t> StoreOnDemand::compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                                    const std::vector<std::uint8_t>& desired) {
  return connected()->compareSet(key, expected, desired);
}

std::vector<std::uint8_t> StoreOnDemand::get(const std::string& key) {
  return connected()->get(key);
}

std::int64_t StoreOnDemand::add(const std::string& key, std::int64_t value) {
  return connected()->add(key, value);
}

bool StoreOnDemand::deleteKey(const std::string& key) {
  return connected()->deleteKey(key);
}

bool StoreOnDemand::check(const std::vector<std::string>& keys) {
  return connected()->check(keys);
}

std::int64_t StoreOnDemand::getNumKeys() {
  return connected()->getNumKeys();
}

void StoreOnDemand::wait(const std::vector<std::string>& keys) {
  connected()->wait(keys);
}

void StoreOnDemand::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  connected()->wait(keys, timeout);
}

void StoreOnDemand::setTimeout(const std::chrono::milliseconds& timeout) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
  if (connection_) connection_->setTimeout(timeout);
}

void StoreOnDemand::append(const std::string& key, const std::vector<std::uint8_t>& value) {
  connected()->append(key, value);
}

std::vector<std::vector<std::uint8_t>> StoreOnDemand::multiGet(const std::vector<std::string>& keys) {
  return connected()->multiGet(keys);
}

void StoreOnDemand::multiSet(const std::vector<std::string>& keys,
                             const std::vector<std::vector<std::uint8_t>>& values) {
  connected()->multiSet(keys, values);
}

}  // namespace tutti::comm
