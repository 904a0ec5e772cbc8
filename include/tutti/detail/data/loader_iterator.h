#pragma once
// The iterator of loops over loaders.
#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>

namespace tutti {

/// A single-pass iterator that owns its loop. Loop::advance() returns false at the end. Loop::batch() returns a
/// reference that is valid until the next advance().
template <typename Loop>
class LoaderIterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = typename Loop::Batch;
  using difference_type = std::ptrdiff_t;

  /// An iterator at the end.
  LoaderIterator() = default;
  /// Advances `loop` to its first batch.
  explicit LoaderIterator(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) { ++*this; }

  value_type& operator*() const { return loop_->batch(); }
  value_type* operator->() const { return &loop_->batch(); }
  LoaderIterator& operator++() {
    if (!loop_->advance()) loop_.reset();  // ends the loop now, not when the iterator is destroyed
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const LoaderIterator& iterator, std::default_sentinel_t) { return iterator.loop_ == nullptr; }

 private:
  std::unique_ptr<Loop> loop_;
};

}  // namespace tutti
