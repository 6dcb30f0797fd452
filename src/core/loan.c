/* loan.c: memory of the host that several storages use (tensor.h, ek_loan). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/fork.h"
#include "core/tensor.h"

/* Guards the loans of all storages, because several threads may ask for addresses of elements. */
static pthread_mutex_t loans_lock = PTHREAD_MUTEX_INITIALIZER;

static void loan_destroy(ek_object *object)
{
    ek_loan *loan = (ek_loan *)object;
    if (loan->data)
        ek_dev_free(loan->dev, loan->data, loan->nbytes, loan->category);
    free(loan);
}

/* Gives the whole pages of memory back to the system, until they are written. */
static void loan_unmap_pages(void *memory, size_t nbytes)
{
    enum { PAGE = 1 << 16 };
    char *first = (char *)memory + (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    char *end = (char *)memory + nbytes;
    if (end >= first + PAGE)
        madvise(first, (size_t)(end - first) / PAGE * PAGE, MADV_DONTNEED);
}

/* Returns true if the storage may share memory: its device allocated it on the host, it stays
 * there, and the storage borrows none. */
static bool loan_may_share(const ek_storage *storage)
{
    return ek_dev_is_host(storage->dev) && !storage->residence && !storage->owner &&
           !storage->pinned_by && !storage->own && !atomic_load(&storage->shares_never);
}

/* Returns the lender's loan, which is made if there is none; NULL if memory is short. The lock is
 * held. */
static ek_loan *loan_of(ek_storage *lender)
{
    ek_loan *loan = atomic_load(&lender->loan);
    if (!loan && (loan = calloc(1, sizeof *loan))) {
        ek_object_init(&loan->object, loan_destroy);
        atomic_store(&lender->loan, loan);
    }
    return loan;
}

void ek_storage_lend(ek_storage *lender, size_t offset, ek_storage *borrower)
{
    ek_loan *loan = NULL;
    ek_lock(&loans_lock);
    if (loan_may_share(lender) && loan_may_share(borrower) && !borrower->loan &&
        offset <= lender->nbytes && borrower->nbytes <= lender->nbytes - offset)
        loan = loan_of(lender);
    if (loan) {
        borrower->own = borrower->data;
        borrower->data = (char *)lender->data + offset;
        atomic_store(&borrower->loan, ek_object_retain(loan));
        loan_unmap_pages(borrower->own, borrower->nbytes);
    }
    ek_unlock(&loans_lock);
}

/* Ends a storage's part in its loan. The lock is held. A thread that finds no loan reads `data`
 * without the lock, so that the loan is the last to go. */
static void loan_end(ek_storage *storage)
{
    if (storage->own)
        storage->data = storage->own;
    storage->own = NULL;
    ek_object_release(atomic_exchange(&storage->loan, NULL));
}

/* The lock is held. */
static void loan_repay(ek_storage *borrower)
{
    memcpy(borrower->own, borrower->data, borrower->nbytes);
    loan_end(borrower);
}

void ek_storage_repay(ek_storage *borrower)
{
    ek_lock(&loans_lock);
    if (borrower->own)
        loan_repay(borrower);
    ek_unlock(&loans_lock);
}

/* Leaves the lender's memory to the borrowers, the last of which frees it, for `other` memory. The
 * lock is held. */
static void loan_leave(ek_storage *lender, void *other)
{
    ek_loan *loan = atomic_load(&lender->loan);
    loan->dev = lender->dev;
    loan->data = lender->data;
    loan->nbytes = lender->nbytes;
    loan->category = lender->category;
    lender->data = other;
    loan_end(lender);
}

/* Leaves the lender's memory to the borrowers, and gives the lender a copy. The lock is held. */
static int loan_leave_with_copy(ek_storage *lender)
{
    void *copy;
    EK_TRY(ek_dev_alloc(lender->dev, lender->nbytes, lender->category, &copy));
    ek_dev_assign(lender->dev, copy, lender->nbytes, lender->category, lender->category,
                  lender->path);
    memcpy(copy, lender->data, lender->nbytes);
    loan_leave(lender, copy);
    return 0;
}

void ek_storage_forget_loan(ek_storage *storage)
{
    ek_lock(&loans_lock);
    if (storage->own)
        loan_end(storage);
    else
        loan_leave(storage, NULL);
    ek_unlock(&loans_lock);
}

/* Does ek_storage_unshare's work. The lock is held. Acquire: a borrower that has repaid has read
 * the memory to the end. */
static int loan_unshare(ek_storage *storage, bool exposed)
{
    const ek_loan *loan = atomic_load(&storage->loan);
    int rc = 0;
    if (!loan || (ek_forked() && !storage->own)) /* A child computes on no device. */
        return 0;
    if (!storage->own &&
        atomic_load_explicit(&loan->object.references, memory_order_acquire) == 1) {
        loan_end(storage);
        return 0;
    }
    if (storage->own)
        loan_repay(storage);
    else if (exposed || ek_thread_in_job())
        rc = loan_leave_with_copy(storage);
    else
        return 0;
    atomic_store(&storage->shares_never, true);
    return rc;
}

int ek_storage_unshare(ek_storage *storage, bool exposed)
{
    ek_lock(&loans_lock);
    int rc = loan_unshare(storage, exposed);
    ek_unlock(&loans_lock);
    return rc;
}

void ek_tensor_follow(ek_tensor *copy, const ek_tensor *source)
{
    ek_write_count *version = copy->version, *before = version->lender;
    atomic_store(&version->count, ek_version_writes(version));
    version->lender = source ? ek_object_retain(source->version) : NULL;
    version->lender_seen = source ? atomic_load(&source->version->lent) : 0;
    ek_object_release(before);
}
