#pragma once
// The key-value entries of a job and the requests that wait for keys. No I/O.
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::coordinator {

/// A request of a rank.
struct RequestId {
  int rank = 0;
  std::uint64_t tag = 0;
  auto operator<=>(const RequestId&) const = default;
};

class KeyValues {
 public:
  struct Waiting {
    RequestId request{};
    std::vector<std::string> keys{};
    bool wants_values = false;
  };

  void set(const std::string& key, std::string value);
  /// Returns the sum. An absent key is 0. Returns nullopt if the value is no decimal number or the sum exceeds 64 bits.
  std::optional<std::int64_t> add(const std::string& key, std::int64_t increment);
  /// Returns the value afterwards.
  std::string compare_set(const std::string& key, const std::string& expected, std::string desired);
  bool erase(const std::string& key) { return values_.erase(key) > 0; }
  bool contains(const std::vector<std::string>& keys) const { return first_missing(keys) == nullptr; }
  std::size_t size() const { return values_.size(); }

  /// The key must exist.
  const std::string& value(const std::string& key) const { return values_.at(key); }

  /// At least one of the keys must be missing. The request waits until all exist, or until forget().
  void wait(Waiting waiting);
  /// The requests that wait no longer, because all their keys exist now.
  std::vector<Waiting> take_ready() { return std::exchange(ready_, {}); }
  /// Returns a key that the request waits for; nullopt if it does not wait.
  std::optional<std::string> forget(const RequestId& request);
  void forget_rank(int rank);

 private:
  /// Null if all exist.
  const std::string* first_missing(const std::vector<std::string>& keys) const;

  std::map<std::string, std::string> values_;
  std::multimap<std::string, Waiting> waiting_;  // by one missing key of each request
  std::vector<Waiting> ready_;
};

}  // namespace tutti::coordinator
