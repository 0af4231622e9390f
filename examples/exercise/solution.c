/* A submitted solution: the sum, the mean, or the distinct ones of the numbers from 0 to 999 on its standard input. */
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments)
{
    static int seen[1000];
    long sum = 0, numbers = 0;
    int number;
    if (count < 2)
        return 2;
    while (scanf("%d", &number) == 1) {
        if (strcmp(arguments[1], "distinct") == 0 && !seen[number]++)
            printf("%d\n", number);
        sum += number;
        numbers++;
    }
    if (strcmp(arguments[1], "sum") == 0)
        printf("%ld\n", sum);
    if (strcmp(arguments[1], "mean") == 0)
        printf("%.6f\n", (double)sum / numbers);
    return 0;
}
