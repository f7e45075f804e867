"""A parallel region that records which chunks ran, in LLVM IR that calls the thread team."""

RECORD_CHUNKS = """
define internal void @work(ptr %data, ptr %claimer, i64 %first, i64 %chunks) {
entry:
  %joined = atomicrmw add ptr %data, i64 1 seq_cst
  br label %loop
loop:
  %chunk = phi i64 [ %first, %entry ], [ %following, %next ]
  %chunks_seen = getelementptr i64, ptr %data, i64 1
  store atomic i64 %chunks, ptr %chunks_seen monotonic, align 8
  %number = add i64 %chunk, 2
  %slot = getelementptr i64, ptr %data, i64 %number
  %old = atomicrmw add ptr %slot, i64 1 seq_cst
  br label %delay
delay:
  %k = phi i64 [ 0, %loop ], [ %k1, %delay ]
  %k1 = add i64 %k, 1
  %limit_slot = getelementptr i64, ptr %data, i64 1100
  %limit = load volatile i64, ptr %limit_slot
  %more = icmp ult i64 %k1, %limit
  br i1 %more, label %delay, label %next
next:
  %following = call i64 @tilewright_next_chunk(ptr %claimer)
  %any = icmp sge i64 %following, 0
  br i1 %any, label %loop, label %done
done:
  ret void
}
@history = internal global [12 x i64] zeroinitializer
define void @record(ptr %data) {
  %slot = alloca i64
  %start = call i64 @tilewright_begin_call(ptr @history, ptr %slot)
  %threads = load i64, ptr %slot
  call void @tilewright_parallel(ptr @work, ptr %data, i64 MOST, i64 %threads)
  call void @tilewright_end_call(ptr @history, i64 %start)
  ret void
}
declare void @tilewright_parallel(ptr, ptr, i64, i64)
declare i64 @tilewright_next_chunk(ptr)
declare i64 @tilewright_begin_call(ptr, ptr)
declare void @tilewright_end_call(ptr, i64)
"""
"""Counts in %data: threads that joined, the number of chunks, and how often each chunk ran; the last word is the delay of one."""
