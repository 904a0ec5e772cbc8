#pragma once
// The iterator that loops over loaders have in common.
#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>

namespace tutti {

/// Single-pass. Owns its loop, which has advance() (false when there is no further batch) and batch(), a reference that
/// is valid until the next advance().
template <typename Loop>
class LoaderIterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = typename Loop::Batch;
  using difference_type = std::ptrdiff_t;

  /// An iterator at the end.
  LoaderIterator() = default;
  /// Stands on the loop's first batch.
  explicit LoaderIterator(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) { ++*this; }

  value_type& operator*() const { return loop_->batch(); }
  value_type* operator->() const { return &loop_->batch(); }
  LoaderIterator& operator++() {
    if (!loop_->advance()) loop_.reset();  // the loop ends here, not only when the iterator dies
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const LoaderIterator& iterator, std::default_sentinel_t) { return iterator.loop_ == nullptr; }

 private:
  std::unique_ptr<Loop> loop_;
};

}  // namespace tutti
