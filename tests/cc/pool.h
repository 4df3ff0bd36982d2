// A pool of threads for teams and queues of calls.
#ifndef TESTS_CC_POOL_H_
#define TESTS_CC_POOL_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace vit_test {

// A pool as runtimes have it: tasks start in their order, when a thread is free. A thread without a
// task yields this many times before it sleeps, since to wake up takes long.
class Pool {
 public:
  explicit Pool(int threads, int yields = 0) : yields_(yields) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void schedule(std::function<void()> task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
      ++waiting_;
    }
    changed_.notify_one();
  }
  // Without threads: runs what was scheduled on the calling thread.
  void run_late() {
    while (!tasks_.empty()) {
      tasks_.front()();
      tasks_.pop_front();
    }
  }

 private:
  void work() {
    for (;;) {
      for (int i = 0; i < yields_ && waiting_ == 0; ++i) std::this_thread::yield();
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return ended_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      --waiting_;
      lock.unlock();
      task();
    }
  }

  const int yields_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::atomic<int> waiting_{0};  // the number of tasks
  std::vector<std::thread> threads_;
  bool ended_ = false;
};

}  // namespace vit_test

#endif  // TESTS_CC_POOL_H_
